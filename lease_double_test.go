package tallyman

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// workOnDouble runs a worker on a handle until stop is called.
func workOnDouble(t *testing.T, h *memory.Handle, settings Settings, handler HandlerFunc) (stop func()) {
	t.Helper()
	return routeOnDouble(t, h, settings, Route{Kind: "k", Handler: handler})
}

// routeOnDouble is workOnDouble with a route, and queues if not the default alone.
func routeOnDouble(t *testing.T, h *memory.Handle, settings Settings, route Route, queues ...string) (stop func()) {
	t.Helper()
	mux := &Mux{}
	if err := mux.Route(route); err != nil {
		t.Fatal(err)
	}
	w, err := onDouble(h, settings).NewWorker(WorkerConfig{Mux: mux, Queues: queues, Logger: slog.New(slog.DiscardHandler), Drain: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return runOnDouble(t, w)
}

// runOnDouble runs a worker, which must end well once it is stopped.
func runOnDouble(t *testing.T, w *Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	return func() { cancel(); running.Wait() }
}

// sendOnDouble publishes what any client could.
func sendOnDouble(t *testing.T, s *memory.Server, token command.Token) {
	t.Helper()
	stored := make(chan error, 1)
	err := s.Connect("stranger", nil).Commands().Send(command.DefaultQueue, "k", token, nil, nil, func(_ stream.Accepted, err error) { stored <- err })
	if err == nil {
		err = <-stored
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A run whose write had no clear outcome looked at its lease, paused for up to
// a second and a half, and wrote.
func TestRun_Clarify_WritesNothingAfterAPauseThatOutlivedTheLease(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	for range 50 { // pauses are random; at least one of these crosses the end
		synctest.Test(t, func(t *testing.T) {
			s := memory.NewServer(memory.Config{Lease: settings.Lease})
			var h *memory.Handle
			var delivered, cut sync.Once
			var end time.Time
			h = s.Connect("w", func(op memory.Op) memory.Fate {
				switch op {
				case memory.OpDeliver:
					delivered.Do(func() { end = time.Now().Add(settings.Lease) })
				case memory.OpExtend:
					return memory.Fate{Lost: true}
				case memory.OpWrite:
					cut.Do(func() { h.Cut(true) })
				case memory.OpRead:
					// The lease may be relied on until a tenth before its end.
					if left := time.Until(end); !end.IsZero() && left < settings.Lease/10+500*time.Millisecond {
						h.Heal()
					}
				}
				return memory.Fate{}
			})
			stop := workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) { return Result{}, nil })
			sendOnDouble(t, s, "a")
			for len(s.Held()) > 0 {
				time.Sleep(time.Second)
			}
			stop()
			time.Sleep(time.Minute)
			for _, e := range s.Log() {
				r := e.Entry.Record
				if late := e.At.Sub(end.Add(-settings.Lease / 10)); e.What == memory.Written && r != nil && r.Attempt == 1 && late > 0 {
					t.Errorf("%s was written %v after the lease could be relied on", r.State, late)
				}
			}
		})
	}
}

// What did not decode was parked, and acked, however late it had come.
func TestWorker_ParksNothingAsMalformedWithoutALease(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 2 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var first sync.Once
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpDeliver {
				// The fetcher waits that long for the answer to a pull.
				first.Do(func() { f.Back = settings.Lease + 100*time.Millisecond })
			}
			return f
		})
		stop := workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) { return Result{}, nil })
		sendOnDouble(t, s, "=zz")
		for len(s.Held()) > 0 {
			time.Sleep(time.Second)
		}
		stop()
		time.Sleep(time.Minute)
		deliveries := 0
		for _, e := range s.Log() {
			switch {
			case e.What == memory.Delivered:
				deliveries++
			case e.What == memory.Written && e.Entry.Key == kvstate.MalformedKey(1) && deliveries < 2:
				t.Errorf("parked after %d deliveries, the lease of which had ended before it came", deliveries)
			}
		}
		for _, text := range s.Broken() {
			t.Error(text)
		}
	})
}
