package desk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// TestManyHands has several people act at random on the same commands while
// workers run, and some of their requeueings cut off. In the end every command
// has one outcome or is parked, and the books balance.
func TestManyHands(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newRig(t, brisk)
	const ids, people, acts = 40, 4, 120

	mux := &tallyman.Mux{}
	mux.Handle("odd", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		select {
		case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
		switch rand.IntN(3) {
		case 0:
			return tallyman.Result{}, tallyman.Reject(errors.New("never"))
		case 1:
			if err := c.Progress(ctx, c.Offset()+1, []byte("state")); err != nil {
				return tallyman.Result{}, err
			}
			return tallyman.Result{}, tallyman.Uncertain(errors.New("who knows"))
		}
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	running, stop := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for range 2 {
		w, err := r.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		workers.Go(func() {
			if err := w.Run(running); err != nil {
				t.Errorf("worker: %v", err)
			}
		})
	}
	defer workers.Wait()
	defer stop()

	cut := errors.New("cut off")
	var hands sync.WaitGroup
	for p := range people {
		hands.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(p)))
			act := Act{By: fmt.Sprintf("person-%d", p)}
			crash := New(r.Commands(), r.Records())
			crash.commands = &flaky{commands: r.Commands(), fail: func(command.Envelope) (bool, error) { return rng.IntN(2) == 0, cut }}
			for range acts {
				id := fmt.Sprintf("c-%d", rng.IntN(ids))
				var err error
				switch rng.IntN(9) {
				case 0, 1:
					_, err = r.Submit(r.ctx, tallyman.Command{ID: id, Kind: "odd", Payload: []byte(id)})
				case 2, 3:
					_, err = r.desk.Requeue(r.ctx, act, id)
				case 4:
					_, err = crash.Requeue(r.ctx, act, id)
				case 5:
					_, err = r.desk.RequeueMany(r.ctx, act, Bulk{})
				case 6:
					_, err = r.desk.Discard(r.ctx, act, id)
				case 7:
					_, err = r.desk.Cancel(r.ctx, act, id)
				case 8:
					_, err = r.desk.Resolve(r.ctx, act, id, Result{Body: []byte(act.By)})
				}
				if err != nil && !errors.Is(err, ErrRefused) && !errors.Is(err, ErrNotFound) && !errors.Is(err, cut) {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	hands.Wait()

	// Whatever was cut off is made up for; then everything runs to its end.
	if _, err := r.desk.RequeueMany(r.ctx, ann, Bulk{}); err != nil {
		t.Error(err)
	}
	r.emptied(t)
	report := r.balanced(t)
	states := map[kvstate.State]int{}
	if err := r.Records().Scan(r.ctx, func(e kvstate.Entry) error {
		if kvstate.Own(e.Key) {
			return nil
		}
		rec := e.Record
		if rec == nil {
			t.Errorf("%s does not decode: %v", e.Key, e.Err)
			return nil
		}
		states[rec.State]++
		if !rec.State.Terminal() {
			t.Errorf("%s is %s and not in the stream", rec.ID, rec.State)
		}
		if rec.State == kvstate.Completed {
			want := rec.ID
			if rec.ResolvedBy != "" {
				want = rec.ResolvedBy
			}
			if string(rec.Result) != want {
				t.Errorf("%s has the result %q, want %q", rec.ID, rec.Result, want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%v, %d sequences, %d absorbed", states, report.LastSeq, report.Absorbed)
	if report.LastSeq < ids || states[kvstate.Completed] == 0 {
		t.Error("hardly anything happened: nothing was tested")
	}
}
