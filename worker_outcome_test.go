package tallyman_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

var errBroken = errors.New("the printer is on fire")

// waits lists the steps of a trail that record a failed attempt.
func waits(r *kvstate.Record) (steps []kvstate.Step) {
	for _, s := range r.Trail {
		if s.State == kvstate.Waiting {
			steps = append(steps, s)
		}
	}
	return steps
}

func TestWorker_FailedAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	attempts := make(chan int, 100)
	var mux tallyman.Mux
	mux.Handle("fail", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		attempts <- c.Attempt()
		return tallyman.Result{}, errBroken
	}))
	mux.Handle("panic", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.Attempt() == 1 {
			panic("boom")
		}
		return tallyman.Result{Body: []byte("second")}, nil
	}))
	mux.Handle("reject", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errBroken)
	}))
	mux.Handle("uncertain", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Uncertain(errBroken)
	}))
	mux.Handle("later", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.Attempt() == 1 {
			return tallyman.Result{}, tallyman.RetryAfter(700*time.Millisecond, errBroken)
		}
		return tallyman.Result{}, nil
	}))
	mux.Handle("hasty", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.RetryAfter(0, errBroken)
	}))
	mux.Handle("huge", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: make([]byte, 2<<20)}, nil
	}))
	if err := mux.Route(tallyman.Route{Kind: "once-*", MaxAttempts: 1, Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, errBroken
	})}); err != nil {
		t.Fatal(err)
	}
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Mux: &mux, Observe: seen.observe})

	t.Run("is retried with growing delays, then parked with the whole command", func(t *testing.T) {
		t.Parallel()
		want := tallyman.Command{ID: "f 1", Kind: "fail", Queue: "default", ContentType: "text/plain", Payload: []byte("payload")}
		r.submit(t, want)
		got, err := r.Wait(r.ctx, "f 1")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted || got.Attempt != 3 {
			t.Fatalf("got %+v, %v; want parked as exhausted at attempt 3", got, err)
		}
		for want := 1; want <= 3; want++ {
			if got := <-attempts; got != want {
				t.Errorf("attempt %d ran, want %d", got, want)
			}
		}
		rec := r.record(t, "f 1", parked)
		if rec.Command == nil || fmt.Sprint(*rec.Command) != fmt.Sprint(want) {
			t.Errorf("parked command %+v, want %+v", rec.Command, want)
		}
		if !strings.Contains(rec.Error, errBroken.Error()) {
			t.Errorf("parked with error %q, want %q in it", rec.Error, errBroken)
		}
		steps := waits(rec)
		if len(steps) != 2 {
			t.Fatalf("%d failed attempts in the trail, want 2: %+v", len(steps), rec.Trail)
		}
		for i := 1; i < len(rec.Trail); i++ {
			if rec.Trail[i].At.Before(rec.Trail[i-1].At) {
				t.Errorf("step %d of the trail lies before the one above it: %+v", i, rec.Trail)
			}
		}
	})
	t.Run("a panic is one", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "p", Kind: "panic"})
		got, err := r.Wait(r.ctx, "p")
		if err != nil || got.Attempt != 2 || string(got.Result) != "second" {
			t.Fatalf("got %+v, %v; want the result of attempt 2", got, err)
		}
		if steps := waits(r.record(t, "p", func(*kvstate.Record) bool { return true })); len(steps) != 1 || !strings.Contains(steps[0].Note, "boom") {
			t.Errorf("trail %+v, want one failed attempt that says boom", steps)
		}
	})
	t.Run("a rejected one parks at once", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "r", Kind: "reject"})
		got, err := r.Wait(r.ctx, "r")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonRejected || got.Attempt != 1 {
			t.Errorf("got %+v, %v; want parked as rejected at attempt 1", got, err)
		}
		eventually(t, r.ctx, "the event", func() bool { return seen.count(tallyman.EventParked, "r") == 1 })
		if n := seen.count(tallyman.EventRetried, "r"); n != 0 {
			t.Errorf("retried %d times, want none", n)
		}
	})
	t.Run("an uncertain one parks at once", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "u", Kind: "uncertain"})
		got, err := r.Wait(r.ctx, "u")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonUncertain || got.Attempt != 1 {
			t.Errorf("got %+v, %v; want parked as uncertain at attempt 1", got, err)
		}
	})
	t.Run("one that asks for another at once gets the pool's backoff", func(t *testing.T) {
		t.Parallel()
		records := r.updates(t, "hasty")
		r.submit(t, tallyman.Command{ID: "hasty", Kind: "hasty"})
		var got []time.Duration
		for rec := records(); rec.State != kvstate.Parked; rec = records() {
			if rec.State == kvstate.Waiting {
				got = append(got, rec.NextAt.Sub(rec.Trail[len(rec.Trail)-1].At))
			}
		}
		// A fifth below the doubled delays.
		if len(got) != 2 || got[0] < 40*time.Millisecond || got[1] < 80*time.Millisecond {
			t.Errorf("next tries are recorded %v after the failed ones, want two, of 40ms and 80ms at least", got)
		}
	})
	t.Run("the handler's own delay is kept", func(t *testing.T) {
		t.Parallel()
		records := r.updates(t, "l")
		r.submit(t, tallyman.Command{ID: "l", Kind: "later"})
		waiting := records()
		for waiting.State != kvstate.Waiting {
			waiting = records()
		}
		if got := waiting.NextAt.Sub(waiting.Trail[len(waiting.Trail)-1].At); got < 700*time.Millisecond {
			t.Errorf("next try is recorded %v after the failed one, want at least 700ms", got)
		}
		if _, err := r.Wait(r.ctx, "l"); err != nil {
			t.Fatal(err)
		}
		rec := r.record(t, "l", func(r *kvstate.Record) bool { return r.State == kvstate.Completed })
		// Workers may begin 100 ms early, for clocks that differ.
		if early := waiting.NextAt.Sub(rec.Trail[len(rec.Trail)-2].At); early > 100*time.Millisecond {
			t.Errorf("the second attempt began %v too early", early)
		}
	})
	t.Run("a result that fits into no receipt parks with a text that says so", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "h", Kind: "huge", Payload: []byte("keep me")})
		got, err := r.Wait(r.ctx, "h")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonRejected {
			t.Fatalf("got %+v, %v; want parked as rejected", got, err)
		}
		for _, want := range []string{"2097152 bytes", "limit", "return a reference"} {
			if !strings.Contains(got.Error, want) {
				t.Errorf("error %q, want %q in it", got.Error, want)
			}
		}
		if rec := r.record(t, "h", parked); rec.Command == nil || string(rec.Command.Payload) != "keep me" {
			t.Errorf("parked command %+v, want it whole", rec.Command)
		}
	})
	t.Run("a route's own limit rules", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "o", Kind: "once-only"})
		if got, err := r.Wait(r.ctx, "o"); !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted || got.Attempt != 1 {
			t.Errorf("got %+v, %v; want parked as exhausted at attempt 1", got, err)
		}
	})
	t.Run("an unknown kind is tried three times", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "k", Kind: "nobody"})
		got, err := r.Wait(r.ctx, "k")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonUnknownKind || got.Attempt != 3 {
			t.Errorf("got %+v, %v; want parked as unknown_kind at attempt 3", got, err)
		}
	})
	t.Run("a command past its time never starts", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "x", Kind: "fail", NotAfter: time.Now().Add(-time.Second)})
		got, err := r.Wait(r.ctx, "x")
		if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExpired {
			t.Errorf("got %+v, %v; want parked as expired", got, err)
		}
	})
}

// updates returns the records of a command one by one as they are written from now on.
func (r *rig) updates(t testing.TB, id command.Token) (next func() *kvstate.Record) {
	t.Helper()
	all, err := r.nc.SubscribeSync(r.Records().Subject(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() *kvstate.Record {
		t.Helper()
		m, err := all.NextMsgWithContext(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := kvstate.Decode(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
}

func TestInvariant_I8_DelaysGrow(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.MaxAttempts = 5
	r := newRig(t, settings, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("fail", func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, errBroken
	})})
	records := r.updates(t, "b")
	r.submit(t, tallyman.Command{ID: "b", Kind: "fail"})
	var delays []time.Duration
	for len(delays) < 4 {
		rec := records()
		if rec.State == kvstate.Waiting {
			delays = append(delays, rec.NextAt.Sub(rec.Trail[len(rec.Trail)-1].At))
		}
	}
	// 50, 100, 200, 400 ms, each shortened by up to a fifth.
	for i, least := 0, 40*time.Millisecond; i < len(delays); i, least = i+1, 2*least {
		if delays[i] < least {
			t.Errorf("delay %d is %v, want at least %v (all: %v)", i+1, delays[i], least, delays)
		}
		if i > 0 && delays[i] <= delays[i-1] {
			t.Errorf("delay %d is %v, want more than the %v before it", i+1, delays[i], delays[i-1])
		}
	}
}

func TestWorker_StuckHandler(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.MaxAttempts = 2
	r := newRig(t, settings, tallyman.Topology{})
	release := make(chan struct{})
	var stuck atomic.Int64
	mux := route(
		tallyman.Route{Kind: "deaf", Timeout: 50 * time.Millisecond, Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			stuck.Add(1)
			defer stuck.Add(-1)
			<-release
			return tallyman.Result{Body: []byte("too late")}, nil
		})},
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
	)
	var seen journal
	w, _ := start(t, r.Pool, tallyman.WorkerConfig{Mux: mux, Concurrency: 1, Grace: 50 * time.Millisecond, Observe: seen.observe})
	r.submit(t, tallyman.Command{ID: "deaf", Kind: "deaf", Payload: []byte("whole")})
	got, err := r.Wait(r.ctx, "deaf")
	if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted || got.Attempt != 2 {
		t.Errorf("got %+v, %v; want parked as exhausted after 2 attempts", got, err)
	}
	eventually(t, r.ctx, "two reports", func() bool { return seen.count(tallyman.EventStuck, "deaf") == 2 })
	if n := stuck.Load(); n != 2 {
		t.Errorf("%d handlers are stuck, want 2", n)
	}
	// The only slot is free again.
	r.submit(t, tallyman.Command{ID: "e", Kind: "echo", Payload: []byte("hello")})
	if got, err := r.Wait(r.ctx, "e"); err != nil || string(got.Result) != "hello" {
		t.Errorf("got %+v, %v; want the echo", got, err)
	}
	if err := w.Ready(r.ctx); err == nil {
		t.Error("ready with as many stuck handlers as slots, want an error")
	}
	close(release)
	eventually(t, r.ctx, "the stuck handlers' return", func() bool { return stuck.Load() == 0 })
	if got, err := r.Wait(r.ctx, "deaf"); !errors.Is(err, tallyman.ErrParked) || bytes.Contains(got.Result, []byte("late")) {
		t.Errorf("after the late return: %+v, %v; want it still parked", got, err)
	}
	eventually(t, r.ctx, "readiness", func() bool { return w.Ready(r.ctx) == nil })
}

// TestKind_HostilePayload must not run beside others: it reads the whole
// process's account of memory.
func TestKind_HostilePayload(t *testing.T) {
	const limit = 64 << 20 // for the server and the pool too; the payloads promise gigabytes
	r := newRig(t, brisk, tallyman.Topology{})
	var ran atomic.Int64
	var mux tallyman.Mux
	tallyman.NewKind[any, any]("any").Handle(&mux, func(context.Context, *tallyman.Claim, any) (any, error) {
		ran.Add(1)
		return nil, nil
	})
	tallyman.NewKind[[]int, any]("numbers").Handle(&mux, func(context.Context, *tallyman.Claim, []int) (any, error) {
		ran.Add(1)
		return nil, nil
	})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: &mux})
	for name, payload := range map[string]string{
		"a list of four billion":       "\xdd\xff\xff\xff\xff",
		"a map of four billion":        "\xdf\xff\xff\xff\xff",
		"a text of four gigabytes":     "\xdb\xff\xff\xff\xff",
		"bytes, four gigabytes":        "\xc6\xff\xff\xff\xff",
		"lists within lists, a myriad": strings.Repeat("\x91", 10_000),
	} {
		for _, kind := range []string{"any", "numbers"} {
			t.Run(name+" as the payload of kind "+kind+" parks as malformed with little memory", func(t *testing.T) {
				id := name + " " + kind
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				r.submit(t, tallyman.Command{ID: id, Kind: kind, ContentType: command.ContentTypeMsgpack, Payload: []byte(payload)})
				got, err := r.Wait(r.ctx, id)
				runtime.ReadMemStats(&after)
				if !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonMalformed || got.Attempt != 1 {
					t.Errorf("got %+v, %v; want parked as malformed at attempt 1", got, err)
				}
				if rec := r.record(t, id, parked); rec.Command == nil || string(rec.Command.Payload) != payload {
					t.Errorf("parked command %+v, want it whole", rec.Command)
				}
				if got := after.TotalAlloc - before.TotalAlloc; got > limit {
					t.Errorf("%d bytes allocated for a payload of %d, want at most %d", got, len(payload), limit)
				}
			})
		}
	}
	if got := ran.Load(); got != 0 {
		t.Errorf("handlers ran %d times, want none", got)
	}
}

func TestWorker_CancelledWhileRunning(t *testing.T) {
	t.Parallel()
	r := newRig(t, mortal(), tallyman.Topology{})
	running, cause := make(chan struct{}), make(chan error, 1)
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: handle("long", func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
		close(running)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return tallyman.Result{Body: []byte("done all the same")}, nil
	})})
	sub := r.submit(t, tallyman.Command{ID: "c", Kind: "long"})
	<-running
	rec := &kvstate.Record{ID: "c", Kind: "long", Queue: "default", Digest: dedupe.Digest("long", nil)}
	rec, err := rec.Advance(kvstate.Cancelled, "anna", "no longer wanted", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.AddSeq(sub.Sequence)
	if _, err := r.Records().WriteWait(r.ctx, "c", rec); err != nil {
		t.Fatal(err)
	}
	if err := <-cause; !errors.Is(err, tallyman.ErrCancelled) {
		t.Errorf("the handler's context ended for %v, want ErrCancelled", err)
	}
	r.emptied(t) // whoever gets it next takes it out
	if got, err := r.Wait(r.ctx, "c"); got.State != tallyman.Cancelled || !errors.Is(err, tallyman.ErrCancelled) {
		t.Errorf("got %+v, %v", got, err)
	}
	if n := seen.count(tallyman.EventCancelled, "c"); n != 1 {
		t.Errorf("the worker noticed %d cancellations, want 1", n)
	}
}
