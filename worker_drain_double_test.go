package tallyman

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
)

type asked struct{}

// A handler sees the values of Run's context, and its context outlives that one
// until the drain time is over, however late the handler begins.
func TestWorker_HandlersContext(t *testing.T) {
	t.Parallel()
	const drain = time.Second
	for _, c := range []struct {
		name string
		held time.Duration // how long the answer to the claim is held back
		want time.Duration // that its context lasts
	}{
		{"of one that runs when the drain begins", 0, drain},
		{"of one whose claim is being written when the drain begins", drain / 2, drain},
		{"of one that begins after the drain time", 3 * drain, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				settings := Settings{Lease: time.Minute}.WithDefaults()
				s := memory.NewServer(memory.Config{Lease: settings.Lease})
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), asked{}, "for"))
				defer cancel()
				var once sync.Once
				h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
					if op == memory.OpWrite {
						once.Do(func() { // the claim
							f.Back = c.held
							if c.held > 0 {
								cancel()
							}
						})
					}
					return f
				})
				mux := &Mux{}
				var began, ended time.Time
				var value any
				var cause error
				if err := mux.Route(Route{Kind: "k", Eager: true, Handler: HandlerFunc(func(ctx context.Context, _ *Claim) (Result, error) {
					began, value = time.Now(), ctx.Value(asked{})
					cancel()
					<-ctx.Done()
					ended, cause = time.Now(), context.Cause(ctx)
					return Result{}, ctx.Err()
				})}); err != nil {
					t.Fatal(err)
				}
				w, err := onDouble(h, settings).NewWorker(WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Drain: drain})
				if err != nil {
					t.Fatal(err)
				}
				sendOnDouble(t, s, "a")
				start := time.Now()
				if err := w.Run(ctx); err != nil {
					t.Errorf("worker: %v", err)
				}
				if value != "for" {
					t.Errorf("the handler sees %v, want the value of Run's context", value)
				}
				if !errors.Is(cause, ErrDraining) {
					t.Errorf("its context ended for %v, want ErrDraining", cause)
				}
				if got, want := began.Sub(start), c.held; got != want {
					t.Errorf("it began after %v, want %v", got, want)
				}
				if got := ended.Sub(began); got != c.want {
					t.Errorf("its context lasted %v, want %v", got, c.want)
				}
				if r := s.Entry("a").Record; r == nil || r.State != kvstate.Waiting || r.Attempt != 0 {
					t.Errorf("got %+v, want it handed back with its attempt", r)
				}
				for _, text := range s.Broken() {
					t.Error(text)
				}
			})
		})
	}
}

// A worker that was paused while it went through a batch gives none of the rest
// back, which may be somebody else's by then.
func TestWorker_GivesNothingBackAfterAPauseWithinABatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		settings := Settings{Lease: 30 * time.Second}.WithDefaults()
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		hand := s.Connect("hand", nil).Records()
		digest := dedupe.Digest("k", nil)
		for _, r := range []*kvstate.Record{
			{ID: "done", State: kvstate.Completed, Attempt: 1, Seqs: []uint64{2}},
			{ID: "early", State: kvstate.Waiting, Attempt: 1, Seqs: []uint64{3}, NextAt: time.Now().Add(time.Hour)},
		} {
			r.Kind, r.Queue, r.Digest = "k", "default", digest
			key, err := dedupe.Token(r.ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := hand.WriteWait(t.Context(), key, r); err != nil {
				t.Fatal(err)
			}
		}
		var batches, paused atomic.Int64
		h := s.Connect("w", func(op memory.Op) memory.Fate {
			if op == memory.OpMany {
				switch batches.Add(1) {
				case 1:
					time.Sleep(time.Second) // until the others have come, which makes one batch of them
				case 3:
					time.Sleep(2 * settings.Lease) // the keeper, before a heartbeat: it is paused as well
				}
			}
			return memory.Fate{Lost: op == memory.OpExtend}
		})
		mux := &Mux{}
		if err := mux.Route(Route{Kind: "k", Handler: HandlerFunc(func(context.Context, *Claim) (Result, error) { return Result{}, nil })}); err != nil {
			t.Fatal(err)
		}
		w, err := onDouble(h, settings).NewWorker(WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Observe: func(e Event) {
			if e.Type == EventAbsorbed && e.ID == "done" && paused.CompareAndSwap(0, batches.Load()) {
				time.Sleep(settings.Lease + time.Second)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		stop := runOnDouble(t, w)
		synctest.Wait()
		sendOnDouble(t, s, "first")
		synctest.Wait()
		sendOnDouble(t, s, "done")
		sendOnDouble(t, s, "early")
		time.Sleep(2 * time.Second)
		stopOther := workOnDouble(t, s.Connect("other", nil), settings, func(context.Context, *Claim) (Result, error) { return Result{}, nil })
		time.Sleep(10 * settings.Lease)
		stop()
		stopOther()
		if got := paused.Load(); got != 2 {
			t.Errorf("it paused in batch %d, want the second", got)
		}
		if got := s.Held(); !slices.Equal(got, []uint64{3}) {
			t.Errorf("the stream holds %v, want what is early alone", got)
		}
		for _, text := range s.Broken() {
			t.Error(text)
		}
	})
}
