package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	for name, tc := range map[string]struct {
		url  string
		want bool
	}{
		"200 is healthy":               {url: server.URL + "/readyz", want: true},
		"503 is not":                   {url: server.URL + "/draining", want: false},
		"a closed port is not":         {url: gone.URL, want: false},
		"what is no URL at all is not": {url: "::", want: false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := check(t.Context(), tc.url)
			if got := err == nil; got != tc.want {
				t.Errorf("check(%q) = %v, want healthy %v", tc.url, err, tc.want)
			}
		})
	}
}
