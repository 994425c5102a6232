package tallyman

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
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
		if _, err := accepted(pool.shards[0].commands.Publish, env); err != nil {
			t.Fatal(err)
		}
		stop := runOnDouble(t, w)
		time.Sleep(10 * time.Second)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Parked || r.Reason != kvstate.ReasonExpired || len(s.Held()) > 0 {
			t.Errorf("got %+v, want it parked as expired", r)
		}
	})
}

// A follower that lagged still showed a record that was gone, and nothing that
// was written from there on could have noticed.
func TestWorker_ParksAndAbsorbsNothingOnAnOldAnswer(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	for name, payload := range map[string]string{"another command": "two", "a copy": "one"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
				var lags atomic.Bool
				h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
					if op == memory.OpMany && lags.Load() {
						f.Behind = 1
					}
					return f
				})
				stop := workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) { return Result{}, nil })
				send := func(payload string) {
					stored := make(chan error, 1)
					done := func(_ stream.Accepted, err error) { stored <- err }
					if err := s.Connect("stranger", nil).Commands().Send(command.DefaultQueue, "k", "a", nil, []byte(payload), done); err != nil {
						t.Fatal(err)
					}
					if err := <-stored; err != nil {
						t.Fatal(err)
					}
				}
				send("one")
				for s.Entry("a").Record == nil || len(s.Held()) > 0 {
					time.Sleep(time.Second)
				}
				s.Delete("a", true)
				lags.Store(true)
				send(payload)
				time.Sleep(time.Minute)
				stop()
				if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || !r.Accounts(2) {
					t.Errorf("got %+v, want a receipt for sequence 2", r)
				}
			})
		})
	}
}

// A follow-up that fitted into the receipt, but not into the record that parks
// what cannot be born, kept its parent in the stream for ever.
func TestClaim_FollowUp_RefusesWhatCouldNotBeSubmitted(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second, MaxAttempts: 1}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
		h := s.Connect("w", nil)
		large := make([]byte, h.Records().Limit()-300)
		stop := workOnDouble(t, h, settings, func(_ context.Context, c *Claim) (Result, error) {
			return Result{}, c.FollowUp(Command{ID: "child", Kind: "k", Payload: large})
		})
		sendOnDouble(t, s, "a")
		time.Sleep(time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || len(s.Held()) > 0 {
			t.Errorf("%d commands are left in the stream, and the record is %+v", len(s.Held()), r)
		} else if r.State != kvstate.Parked || !strings.Contains(r.Error, ErrTooLarge.Error()) {
			t.Errorf("got %s %q, want it parked for a follow-up that is too large", r.State, r.Error)
		}
	})
}
