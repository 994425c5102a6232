package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

// endpoint serves h, and returns a handler that posts to it over a transport
// of its own, whose connections end with the test.
func endpoint(t *testing.T, h http.HandlerFunc) (*runner.HTTP, *httptest.Server) {
	t.Helper()
	srv := httptest.NewServer(h)
	transport := runner.NewTransport()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	return &runner.HTTP{URL: srv.URL + "/hook?key=s3cret", Transport: transport}, srv
}

func TestHTTP_Request(t *testing.T) {
	t.Parallel()

	t.Run("the command is posted with its description, and the answer is the result", func(t *testing.T) {
		t.Parallel()
		h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprintf(w, "%s %s %s\n", r.Method, r.URL, body)
			for _, name := range []string{
				"Idempotency-Key", "Content-Type", "Tallyman-Id", "Tallyman-Kind", "Tallyman-Queue", "Tallyman-Attempt",
				"Tallyman-Token", "Tallyman-Offset", "Tallyman-Checkpoint", "Tallyman-Checkpoint-Omitted", "X-Api-Key",
			} {
				fmt.Fprintf(w, "%s: %q\n", name, r.Header.Values(name))
			}
		})
		h.Headers = map[string]string{"X-Api-Key": "k", "Content-Type": "text/x-default"}
		got, err := h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "né 100%/🚚", Kind: "hook", Queue: "slow", ContentType: "text/plain; charset=\"ü\"", Payload: []byte("in")},
			Attempt: 2, Token: 9, Offset: 7, Checkpoint: []byte("a\n"),
		}))
		want := `POST /hook?key=s3cret in
Idempotency-Key: ["n%C3%A9%20100%25/%F0%9F%9A%9A"]
Content-Type: ["text/plain; charset=\"%C3%BC\""]
Tallyman-Id: ["n%C3%A9%20100%25/%F0%9F%9A%9A"]
Tallyman-Kind: ["hook"]
Tallyman-Queue: ["slow"]
Tallyman-Attempt: ["2"]
Tallyman-Token: ["9"]
Tallyman-Offset: ["7"]
Tallyman-Checkpoint: ["YQo="]
Tallyman-Checkpoint-Omitted: []
X-Api-Key: ["k"]
`
		if err != nil || string(got.Body) != want || got.ContentType != "application/json" {
			t.Errorf("got %q %s, %v; want %s", got.ContentType, got.Body, err, want)
		}
		if id, _ := url.PathUnescape("n%C3%A9%20100%25/%F0%9F%9A%9A"); id != "né 100%/🚚" {
			t.Errorf("decoded: got %q", id)
		}
	})

	t.Run("a content type is always stated", func(t *testing.T) {
		t.Parallel()
		h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Content-Type")) })
		got, err := h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		if want := "application/octet-stream"; err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
		h.Headers = map[string]string{"content-type": "application/json"}
		got, err = h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		if want := "application/json"; err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
	})

	t.Run("a checkpoint whose header would reach 8 KiB is left out, and its size told", func(t *testing.T) {
		t.Parallel()
		h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "%d %s", len(r.Header.Get("Tallyman-Checkpoint")), r.Header.Get("Tallyman-Checkpoint-Omitted"))
		})
		for size, want := range map[int]string{6141: "8188 ", 6142: "0 6142"} {
			got, err := h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{Checkpoint: make([]byte, size)}))
			if err != nil || string(got.Body) != want {
				t.Errorf("%d bytes: got %q, %v; want %q", size, got.Body, err, want)
			}
		}
	})
}

func TestHTTP_Status(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		status           int
		retryAfter, body string
		verdict, want    string
	}{
		{200, "", "ok", "complete", ""},
		{204, "", "", "complete", ""},
		{301, "", "", "park rejected", "301 redirects to http://elsewhere.example/x, which is not followed for a POST; correct the URL in the pool file"},
		{303, "", "", "park rejected", "303 redirects"},
		{400, "", "no such field", "park rejected", "/hook: 400 Bad Request: no such field"},
		{401, "", "", "park rejected", "401 Unauthorized"},
		{404, "", "", "park rejected", "404 Not Found"},
		{409, "5", "", "park rejected", "409 Conflict"},
		{408, "", "", "retry", "408 Request Timeout"},
		{425, "", "", "retry", "425 Too Early"},
		{429, "", "", "retry", "429 Too Many Requests"},
		{429, "7", "slow down", "retry after 7s", "429 Too Many Requests: slow down"},
		{503, "120", "", "retry after 2m0s", "503 Service Unavailable"},
		{503, "7200", "", "retry after 1h0m0s", ""},
		{503, "99999999999999999999", "", "retry", ""},
		{503, "9223372036854775807", "", "retry after 1h0m0s", ""},
		{503, "Fri, 31 Dec 9998 23:59:59 GMT", "", "retry after 1h0m0s", ""},
		{503, "Sun, 06 Nov 1994 08:49:37 GMT", "", "retry after 0s", ""},
		{503, "-3", "", "retry", ""},
		{503, "soon", "", "retry", ""},
		{500, "60", "trace", "retry", "500 Internal Server Error: trace"},
		{502, "", "", "retry", "502 Bad Gateway"},
	} {
		t.Run(fmt.Sprintf("%d with Retry-After %q", tt.status, tt.retryAfter), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				if tt.status/100 == 3 {
					w.Header().Set("Location", "http://elsewhere.example/x?token=1")
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			})
			got, err := h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
			if tt.verdict == "complete" {
				if err != nil || string(got.Body) != tt.body {
					t.Errorf("got %q, %v; want %q", got.Body, err, tt.body)
				}
			} else {
				wantError(t, err, tt.verdict, tt.want)
				if strings.Contains(err.Error(), "s3cret") {
					t.Errorf("error shows the query of the URL: %v", err)
				}
			}
			if n := requests.Load(); n != 1 {
				t.Errorf("requests: got %d, want 1", n)
			}
		})
	}
}

func TestHTTP_Body(t *testing.T) {
	t.Parallel()
	h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(w, r.Body)
		if n == 101 {
			w.(http.Flusher).Flush()
		}
	})
	h.MaxResult = 100
	payload := func(n int) *tallyman.Claim {
		return claimOf(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Payload: bytes.Repeat([]byte("x"), n)}})
	}
	if got, err := h.Handle(t.Context(), payload(100)); err != nil || len(got.Body) != 100 {
		t.Errorf("got %d bytes, %v; want 100", len(got.Body), err)
	}
	_, err := h.Handle(t.Context(), payload(101))
	wantError(t, err, "park rejected", "larger than max_result (100 bytes)", "nothing cut")

	cut, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		io.WriteString(w, "half")
	})
	_, err = cut.Handle(t.Context(), payload(1))
	wantError(t, err, "retry", "read result", "unexpected EOF")

	long, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(400)
		io.WriteString(w, strings.Repeat("é", 10_000)+"\xffend")
	})
	_, err = long.Handle(t.Context(), payload(1))
	wantError(t, err, "park rejected", "...é", "é?end")
	if n := len(err.Error()); n > 2<<10+200 {
		t.Errorf("error has %d bytes, want about 2 KiB", n)
	}
}

func TestHTTP_Connection(t *testing.T) {
	t.Parallel()

	t.Run("one connection serves one attempt after the other, errors included", func(t *testing.T) {
		t.Parallel()
		seen := make(map[string]bool) // the server handles one request at a time here
		h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
			seen[r.RemoteAddr] = true
			if r.Header.Get("Tallyman-Attempt") == "2" {
				w.WriteHeader(500)
			}
			io.WriteString(w, strings.Repeat("x", 50_000))
		})
		for attempt := range 6 {
			_, _ = h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{Attempt: attempt}))
		}
		if len(seen) != 1 {
			t.Errorf("connections: got %d, want 1", len(seen))
		}
	})

	t.Run("a refused connection is a failed attempt", func(t *testing.T) {
		t.Parallel()
		h, srv := endpoint(t, func(http.ResponseWriter, *http.Request) {})
		srv.Close()
		_, err := h.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "/hook: dial tcp", "connection refused")
	})

	t.Run("an unusable URL is a failed attempt", func(t *testing.T) {
		t.Parallel()
		_, err := (&runner.HTTP{}).Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "HTTP.URL is not usable")
	})

	// net/http would do so, on account of the Idempotency-Key.
	for _, payload := range []string{"", "payload"} {
		t.Run(fmt.Sprintf("a request that may have been served is not repeated, payload %q", payload), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if requests.Add(1) == 1 {
					return
				}
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				conn.(*net.TCPConn).SetLinger(0) // a reset, as from a crash
				conn.Close()
			})
			claim := claimOf(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Payload: []byte(payload)}})
			if _, err := h.Handle(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
			_, err := h.Handle(t.Context(), claim)
			wantError(t, err, "retry", "/hook: ")
			if n := requests.Load(); n != 2 {
				t.Errorf("requests: got %d, want 2", n)
			}
		})
	}

	for _, cause := range []error{tallyman.ErrLeaseLost, tallyman.ErrDraining, tallyman.ErrTimeout} {
		t.Run("the end of ctx ends the request: "+cause.Error(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := make(chan struct{})
			h, _ := endpoint(t, func(_ http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				cancel(cause)
				<-r.Context().Done()
				close(gone)
			})
			_, err := h.Handle(ctx, claimOf(tallyman.DetachedConfig{}))
			if !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
			wantError(t, err, "retry", "was stopped")
			receive(t, "the server's notice", gone)
		})
	}
}
