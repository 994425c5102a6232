package tallyman

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Whether it is too late was asked when the delivery came, and not when a slot
// was free and the claim written.
func TestWorker_StartsNoHandlerAfterNotAfter(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 30 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
		var once sync.Once
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpWrite { // that of the claim is late
				once.Do(func() { f.Delay = 3 * time.Second })
			}
			return f
		})
		end := time.Now().Add(time.Second)
		mux := &Mux{}
		if err := mux.Route(Route{Kind: "k", Eager: true, Handler: HandlerFunc(func(context.Context, *Claim) (Result, error) {
			if late := time.Since(end); late > 0 {
				t.Errorf("the handler starts %v too late", late)
			}
			return Result{}, nil
		})}); err != nil {
			t.Fatal(err)
		}
		pool := onDouble(h, settings)
		w, err := pool.NewWorker(WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Drain: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		env, err := dedupe.Identify(Command{ID: "a", Kind: "k", Queue: command.DefaultQueue, NotAfter: end})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := accepted(pool.commands.Publish, env); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := w.Run(ctx); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
		time.Sleep(10 * time.Second)
		cancel()
		running.Wait()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Parked || r.Reason != kvstate.ReasonExpired || len(s.Held()) > 0 {
			t.Errorf("got %+v, want it parked as expired", r)
		}
	})
}
