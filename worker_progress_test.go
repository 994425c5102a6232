package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

func TestInvariant_I5_Progress(t *testing.T) {
	t.Parallel()
	t.Run("is durable, never goes back, and is where the next attempt resumes", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("steps", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if c.Attempt() > 1 {
				return tallyman.Result{Body: fmt.Appendf(nil, "%d %s", c.Offset(), c.Checkpoint())}, nil
			}
			if c.Token() != 0 {
				t.Errorf("token %d before the first write, want 0", c.Token())
			}
			var last uint64
			for offset := uint64(1); offset <= 5; offset++ {
				if err := c.Progress(ctx, offset, fmt.Appendf(nil, "state-%d", offset)); err != nil {
					return tallyman.Result{}, err
				}
				e := r.entry(t, "s")
				if e.Record == nil || e.Record.Offset != offset || string(e.Record.Checkpoint) != fmt.Sprintf("state-%d", offset) {
					t.Errorf("at offset %d the record holds %+v", offset, e.Record)
				}
				if c.Token() == 0 || last != 0 && c.Token() != last {
					t.Errorf("token %d after %d, want one that stays", c.Token(), last)
				}
				last = c.Token()
			}
			if err := c.Progress(ctx, 4, nil); err == nil {
				t.Error("offset 4 was saved after 5")
			}
			return tallyman.Result{}, errBroken
		})})
		r.submit(t, tallyman.Command{ID: "s", Kind: "steps"})
		got, err := r.Wait(r.ctx, "s")
		if err != nil || string(got.Result) != "5 state-5" || got.Attempt != 2 {
			t.Errorf("got %+v, %v; want attempt 2 to resume at 5", got, err)
		}
	})
	t.Run("leaves room for the command to be parked", func(t *testing.T) {
		t.Parallel()
		settings := brisk
		settings.MaxAttempts = 2
		r := newRig(t, settings, tallyman.Topology{})
		limit := r.Records().Limit() - stream.Reserve
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("big", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if err := c.Progress(ctx, 1, make([]byte, limit+1)); !errors.Is(err, tallyman.ErrTooLarge) {
				t.Errorf("a checkpoint above the limit: %v, want ErrTooLarge", err)
			}
			if err := c.Progress(ctx, 1, make([]byte, limit)); err != nil {
				t.Errorf("a checkpoint at the limit: %v", err)
			}
			return tallyman.Result{}, errBroken
		})})
		r.submit(t, tallyman.Command{ID: "b", Kind: "big", Payload: make([]byte, 50_000)})
		got, err := r.Wait(r.ctx, "b")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted {
			t.Fatalf("got %+v, %v; want parked as exhausted", got, err)
		}
		if rec := r.record(t, "b", parked); len(rec.Checkpoint) != limit || rec.Command == nil {
			t.Errorf("the record holds a checkpoint of %d bytes, command %v", len(rec.Checkpoint), rec.Command != nil)
		}
		if e := r.entry(t, kvstate.PayloadKey("b")); len(e.Raw) != 50_000 {
			t.Errorf("%d bytes of payload are kept, want 50000", len(e.Raw))
		}
	})
}

func TestInvariant_I4_AStaleWorkerChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	first, goOn := make(chan struct{}), make(chan struct{})
	lost := make(chan error, 1)
	cause := make(chan error, 1)
	var seen journal
	_, stop := start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: handle("long", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if err := c.Progress(ctx, 1, nil); err != nil {
			return tallyman.Result{}, err
		}
		close(first)
		<-goOn
		lost <- c.Progress(ctx, 2, nil)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return tallyman.Result{Body: []byte("stale")}, nil
	})})
	r.submit(t, tallyman.Command{ID: "l", Kind: "long"})
	<-first
	mine := r.entry(t, "l").Record
	theirs, err := mine.Advance(kvstate.Claimed, "another", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	theirs.Attempt++
	revision, err := r.Records().WriteWait(r.ctx, "l", theirs)
	if err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-lost; !errors.Is(err, tallyman.ErrLeaseLost) {
		t.Errorf("progress after a takeover: %v, want ErrLeaseLost", err)
	}
	if err := <-cause; !errors.Is(err, tallyman.ErrLeaseLost) {
		t.Errorf("the context ended for %v, want ErrLeaseLost", err)
	}
	stop()
	if n := seen.count(tallyman.EventCompleted, "l"); n != 0 {
		t.Errorf("%d receipts by a worker that had lost the command", n)
	}
	if e := r.entry(t, "l"); e.Revision != revision || e.Record.Owner != "another" {
		t.Errorf("the record is now %+v at %d, want another's at %d", e.Record, e.Revision, revision)
	}
	if st, err := r.Commands().State(r.ctx); err != nil || st.Messages != 1 {
		t.Errorf("the stream holds %+v, %v; want the command still there", st, err)
	}
}

func TestWorker_Eager(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	tokens := make(chan uint64, 10)
	start(t, r.Pool, tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "fenced", Eager: true, Handler: tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		tokens <- c.Token()
		if c.Attempt() < 3 {
			return tallyman.Result{}, errBroken
		}
		return tallyman.Result{}, nil
	})})})
	r.submit(t, tallyman.Command{ID: "e", Kind: "fenced"})
	got, err := r.Wait(r.ctx, "e")
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for range 3 {
		token := <-tokens
		if token <= last {
			t.Errorf("token %d after %d, want a greater one", token, last)
		}
		last = token
	}
	if got.Token != last {
		t.Errorf("the receipt has token %d, want %d", got.Token, last)
	}
}

func TestClaim_Pace(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	revision := func(id string) uint64 { return r.entry(t, command.Token(id)).Revision }
	start(t, r.Pool, tallyman.WorkerConfig{Mux: route(
		tallyman.Route{Kind: "counted", SaveCount: 5, Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if c.Attempt() == 2 {
				return tallyman.Result{Body: fmt.Appendf(nil, "%d %s", c.Offset(), c.Checkpoint())}, nil
			}
			writes, last := 0, uint64(0)
			for n := uint64(1); n <= 12; n++ {
				if err := c.Progress(ctx, n, fmt.Appendf(nil, "s%d", n)); err != nil {
					return tallyman.Result{}, err
				}
				if at := revision(c.ID()); at != last {
					writes, last = writes+1, at
				}
			}
			if writes != 3 || c.Offset() != 11 { // calls 1, 6 and 11
				t.Errorf("12 calls made %d writes, the last at offset %d; want 3 and 11", writes, c.Offset())
			}
			if err := c.Progress(ctx, 11, nil); err == nil {
				t.Error("offset 11 was taken after 12")
			}
			return tallyman.Result{}, errBroken // what was held back goes into the record of the failure
		})},
		tallyman.Route{Kind: "timed", SaveEvery: time.Hour, Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			for n := uint64(1); n <= 4; n++ {
				if err := c.Progress(ctx, n, nil); err != nil {
					return tallyman.Result{}, err
				}
			}
			if at := r.entry(t, "b").Record.Offset; at != 1 {
				t.Errorf("offset %d is durable within the hour, want 1", at)
			}
			if err := c.Flush(ctx); err != nil {
				return tallyman.Result{}, err
			}
			if at := r.entry(t, "b").Record.Offset; at != 4 || c.Offset() != 4 {
				t.Errorf("offset %d is durable after a flush, the claim says %d; want 4", at, c.Offset())
			}
			before := revision("b")
			return tallyman.Result{}, errors.Join(c.Flush(ctx), func() error {
				if revision("b") != before {
					t.Error("a flush of nothing was written")
				}
				return nil
			}())
		})},
	)})
	r.submit(t, tallyman.Command{ID: "a", Kind: "counted"})
	r.submit(t, tallyman.Command{ID: "b", Kind: "timed"})
	if got, err := r.Wait(r.ctx, "a"); err != nil || string(got.Result) != "12 s12" {
		t.Errorf("got %q, %v; want the next attempt to begin at 12", got.Result, err)
	}
	if _, err := r.Wait(r.ctx, "b"); err != nil {
		t.Error(err)
	}
}
