package probes

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestProbes_Ready(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var answer error
		h := New(func(context.Context) error { asked++; return answer }, http.NotFoundHandler())
		get := func(wantCode int, wantBody string, wantAsked int) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
			if w.Code != wantCode || w.Body.String() != wantBody || asked != wantAsked {
				t.Errorf("got %d %q after %d questions, want %d %q after %d", w.Code, w.Body, asked, wantCode, wantBody, wantAsked)
			}
		}
		get(200, "ready\n", 1)
		answer = errors.New("no pull was answered")
		get(200, "ready\n", 1)
		time.Sleep(readyKeep) // of the bubble's clock
		get(503, "no pull was answered\n", 2)
		answer = nil
		get(503, "no pull was answered\n", 2)
		time.Sleep(readyKeep)
		get(200, "ready\n", 3)
	})
}

func TestProbes_ReadyIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, http.NotFoundHandler())
		began := time.Now()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		if took := time.Since(began); w.Code != 503 || took != readyLimit {
			t.Errorf("got %d after %v, want 503 after %v", w.Code, took, readyLimit)
		}
	})
}
