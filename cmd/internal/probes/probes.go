package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// readyLimit bounds one look at whether the worker is ready.
	readyLimit = 3 * time.Second
	// readyKeep is how long an answer stands: each costs a write to the server.
	readyKeep = time.Second
	// closeLimit bounds the end of requests under way at shutdown.
	closeLimit = 2 * time.Second
)

// New serves /healthz, /readyz and /metrics.
func New(ready func(context.Context) error, metrics http.Handler) http.Handler {
	r := &readiness{ask: ready, now: time.Now}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "alive")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.Handle("GET /metrics", metrics)
	return mux
}

// readiness asks once for everybody who wants to know within a second.
type readiness struct {
	ask func(context.Context) error
	now func() time.Time

	mu    sync.Mutex // held while asking, so that the others wait for that answer
	at    time.Time
	known error
}

func (r *readiness) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && r.now().Sub(r.at) < readyKeep {
		return r.known
	}
	// Not the context of the request: its client may leave, and the answer is
	// for others too.
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	r.known = r.ask(ctx)
	r.at = r.now()
	return r.known
}

// Serve answers on l until over, so that a worker that drains can still be
// asked how it fares.
func Serve(l net.Listener, h http.Handler, over <-chan struct{}) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve http: %w", err)
	case <-over:
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := s.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	<-failed //nolint:errcheck // Serve's word that it was shut down
	return err
}
