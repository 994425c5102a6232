package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestWorker_Drain(t *testing.T) {
	t.Parallel()
	t.Run("being told to stop before it has begun is no failure", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		w, err := r.NewWorker(tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "quick", Handler: tallyman.HandlerFunc(echo)}), Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := w.Run(ctx); err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
	t.Run("hands back what runs and what waits without burning an attempt", func(t *testing.T) {
		t.Parallel()
		// The lease is longer than the test: what is not handed back never comes.
		r := newRig(t, tallyman.Settings{Lease: 5 * time.Minute}, tallyman.Topology{})
		const slots, n = 8, 40 // with many slots it fetches ahead though handlers were slow to return
		entered := make(chan struct{}, 100)
		causes := make(chan error, 100)
		mux := route(
			tallyman.Route{Kind: "quick", Handler: tallyman.HandlerFunc(echo)},
			tallyman.Route{Kind: "block", Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				if c.ID() == "b-0" {
					if err := c.Progress(ctx, 7, []byte("saved")); err != nil {
						return tallyman.Result{}, err
					}
				}
				entered <- struct{}{}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return tallyman.Result{}, ctx.Err()
			})})
		var seen journal
		w, stop := start(t, r.Pool, tallyman.WorkerConfig{Mux: mux, Concurrency: slots, Drain: -1, Observe: seen.observe})
		for i := range 50 { // teaches the worker to fetch ahead
			r.submit(t, tallyman.Command{ID: fmt.Sprint("q-", i), Kind: "quick"})
		}
		r.emptied(t)
		for i := range n {
			r.submit(t, tallyman.Command{ID: fmt.Sprint("b-", i), Kind: "block"})
		}
		for range slots {
			<-entered
		}
		eventually(t, r.ctx, "deliveries that wait for a slot", func() bool { held, _ := w.InFlight(); return held > slots })
		stop()
		for range slots {
			if err := <-causes; !errors.Is(err, tallyman.ErrDraining) {
				t.Errorf("the context ended for %v, want ErrDraining", err)
			}
		}
		if n := seen.count(tallyman.EventHandedBack, ""); n <= slots {
			t.Errorf("%d handed back, want those that ran and those that waited", n)
		}
		var first sync.Map
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("block", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			first.Store(c.ID(), [2]uint64{uint64(c.Attempt()), c.Offset()})
			return tallyman.Result{}, nil
		})})
		for i := range n {
			id := fmt.Sprint("b-", i)
			got, err := r.Wait(r.ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			ran, _ := first.Load(id)
			want := [2]uint64{1, 0}
			if i == 0 {
				want[1] = 7
			}
			if seen.count(tallyman.EventHandedBack, id) == 0 {
				// The server sent it to a pull that had just ended, and counts that as
				// a delivery if it was the first: somebody may have run it.
				want[0] = ran.([2]uint64)[0]
			}
			if ran != want || got.Attempt != int(want[0]) {
				t.Errorf("%s: attempt and offset %v, receipt %+v; want %v", id, ran, got, want)
			}
		}
	})
	t.Run("settles at once what handlers return after the end of their context", func(t *testing.T) {
		t.Parallel()
		// The lease is longer than the test: what is not settled stays as it was.
		r := newRig(t, tallyman.Settings{Lease: 5 * time.Minute}, tallyman.Topology{})
		entered := make(chan struct{}, 3)
		afterEnd := func(result tallyman.Result, err error) tallyman.HandlerFunc {
			return func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
				entered <- struct{}{}
				<-ctx.Done()
				return result, err
			}
		}
		_, stop := start(t, r.Pool, tallyman.WorkerConfig{Drain: -1, Mux: route(
			tallyman.Route{Kind: "done", Handler: afterEnd(tallyman.Result{Body: []byte("late")}, nil)},
			tallyman.Route{Kind: "broken", MaxAttempts: 1, Handler: afterEnd(tallyman.Result{}, errBroken)},
			tallyman.Route{Kind: "rejected", Handler: afterEnd(tallyman.Result{}, tallyman.Reject(errBroken))},
		)})
		for _, kind := range []string{"done", "broken", "rejected"} {
			r.submit(t, tallyman.Command{ID: kind, Kind: kind})
			<-entered
		}
		stop()
		for id, want := range map[string]struct {
			state   kvstate.State
			attempt int
		}{"done": {kvstate.Completed, 1}, "broken": {kvstate.Waiting, 0}, "rejected": {kvstate.Parked, 1}} {
			rec := r.entry(t, command.Token(id)).Record
			if rec == nil || rec.State != want.state || rec.Attempt != want.attempt {
				t.Errorf("%s: got %+v once the worker had stopped, want %s at attempt %d", id, rec, want.state, want.attempt)
			}
		}
		// The one attempt that it has is still there.
		start(t, r.Pool, tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "broken", MaxAttempts: 1, Handler: tallyman.HandlerFunc(echo)})})
		if got, err := r.Wait(r.ctx, "broken"); err != nil || got.Attempt != 1 {
			t.Errorf("got %+v, %v; want the receipt of attempt 1", got, err)
		}
		r.emptied(t)
	})
	t.Run("lets handlers end within the drain time", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		entered, release := make(chan struct{}), make(chan struct{})
		w, stop := start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("slow", func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
			close(entered)
			<-release
			return tallyman.Result{Body: []byte("done")}, ctx.Err()
		})})
		r.submit(t, tallyman.Command{ID: "s", Kind: "slow"})
		<-entered
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		eventually(t, r.ctx, "the drain", func() bool { return errors.Is(w.Ready(r.ctx), tallyman.ErrDraining) })
		close(release)
		<-stopped
		rec := r.record(t, "s", func(*kvstate.Record) bool { return true })
		if rec.State != kvstate.Completed || string(rec.Result) != "done" {
			t.Errorf("got %+v, want it completed before Run returned", rec)
		}
		r.emptied(t)
	})
}

func TestWorker_Concurrency(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	const limit, n = 3, 300
	var running, most, over atomic.Int64
	for i := range n {
		r.submit(t, tallyman.Command{ID: fmt.Sprint(i), Kind: "count"})
	}
	start(t, r.Pool, tallyman.WorkerConfig{Concurrency: limit, Mux: handle("count", func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		now := running.Add(1)
		defer running.Add(-1)
		if now > limit {
			over.Add(1)
		}
		for {
			m := most.Load()
			if now <= m || most.CompareAndSwap(m, now) {
				return tallyman.Result{}, nil
			}
		}
	})})
	r.emptied(t)
	if over.Load() > 0 {
		t.Errorf("up to %d handlers at once, want at most %d", most.Load(), limit)
	}
}

func TestWorker_LongHandlerKeepsItsLease(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Lease, settings.MaxAttempts = time.Second, 100 // a lease that a stalled machine loses is no failure
	r := newRig(t, settings, tallyman.Topology{})
	var ran atomic.Int64
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: handle("long", func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		enough := time.NewTimer(3 * settings.Lease)
		defer enough.Stop()
		select {
		case <-enough.C:
			return tallyman.Result{}, nil
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
	})})
	r.submit(t, tallyman.Command{ID: "l", Kind: "long"})
	got, err := r.Wait(r.ctx, "l")
	if err != nil {
		t.Fatal(err)
	}
	// On a machine that stalls for longer than the lease it may be lost; then it must show.
	if lost := seen.count(tallyman.EventLeaseLost, "l") + seen.count(tallyman.EventDropped, "l"); ran.Load() != 1 && lost == 0 {
		t.Errorf("ran %d times without a lost lease, receipt %+v; want once", ran.Load(), got)
	}
}

// A retry delay longer than the lease, or a run longer than it, made other
// systems run a command again that was not lost: hexpm#1825, celery#5935.
func TestWorker_DelayAndRunLongerThanTheLease(t *testing.T) {
	t.Parallel()
	const lease, attempts = time.Second, 3
	r := newRig(t, tallyman.Settings{Lease: lease, MaxAttempts: 100, BackoffMin: 2 * lease, BackoffMax: 3 * lease}, tallyman.Topology{})
	var seen journal
	var mu sync.Mutex
	var began []int
	work := func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		mu.Lock()
		began = append(began, c.Attempt())
		mu.Unlock()
		enough := time.NewTimer(2 * lease)
		defer enough.Stop()
		select {
		case <-enough.C:
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
		if c.Attempt() < attempts {
			return tallyman.Result{}, errBroken
		}
		return tallyman.Result{Body: []byte("done")}, nil
	}
	for range 2 { // the other one would take what looks abandoned
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("slow", work), Observe: seen.observe})
	}
	first := r.submit(t, tallyman.Command{ID: "s", Kind: "slow"})
	got, err := r.Wait(r.ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	cons, err := r.js.Consumer(r.ctx, "main_commands", "default")
	if err != nil {
		t.Fatal(err)
	}
	delivered := cons.CachedInfo().Delivered.Consumer
	// On a machine that stalls for longer than the lease it may be lost; then it must show.
	if lost := seen.count(tallyman.EventLeaseLost, "s") + seen.count(tallyman.EventDropped, "s"); lost == 0 {
		mu.Lock()
		if want := []int{1, 2, 3}; !slices.Equal(began, want) {
			t.Errorf("attempts began as %v, want %v", began, want)
		}
		mu.Unlock()
		if delivered != attempts || got.Attempt != attempts {
			t.Errorf("got %d deliveries and the receipt of attempt %d, want %d of both", delivered, got.Attempt, attempts)
		}
	}
	if n := seen.count(tallyman.EventCompleted, "s"); n != 1 {
		t.Errorf("completed %d times, want one receipt", n)
	}
	if rec := r.record(t, "s", func(*kvstate.Record) bool { return true }); !slices.Equal(rec.Seqs, []uint64{first.Sequence}) {
		t.Errorf("the receipt accounts for %v, want sequence %d", rec.Seqs, first.Sequence)
	}
}
