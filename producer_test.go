package tallyman_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestProducer_SubmitMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	var commands []tallyman.Command
	for i := range 200 {
		commands = append(commands, tallyman.Command{ID: fmt.Sprint(i), Kind: "k"})
	}
	commands[17].Kind = "not a kind"
	seen := map[int]string{}
	if err := r.NewProducer(tallyman.ProducerConfig{Window: 50}).SubmitMany(r.ctx, slices.Values(commands), func(i int, s tallyman.Submission, err error) {
		seen[i] = s.ID
		if (err != nil) != (i == 17) {
			t.Errorf("command %d: %+v, %v", i, s, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for i := range commands {
		if seen[i] != commands[i].ID {
			t.Errorf("outcome %d names %q, want %q", i, seen[i], commands[i].ID)
		}
	}
}

func TestProducer_Absorbs(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	c := tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}
	check := func(stage string, state tallyman.State) {
		t.Helper()
		if sub, err := r.Submit(r.ctx, c); err != nil || !sub.Absorbed || sub.State != state {
			t.Errorf("%s: %+v, %v; want absorbed in state %q", stage, sub, err, state)
		}
		other := c
		other.Payload = []byte("y")
		if sub, err := r.Submit(r.ctx, other); !errors.Is(err, tallyman.ErrConflict) {
			t.Errorf("%s, another payload: %+v, %v; want ErrConflict", stage, sub, err)
		}
		other = c
		other.Kind = "other"
		if sub, err := r.Submit(r.ctx, other); !errors.Is(err, tallyman.ErrConflict) {
			t.Errorf("%s, another kind: %+v, %v; want ErrConflict", stage, sub, err)
		}
	}
	var accepted sync.Map
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			sub, err := r.Submit(r.ctx, c)
			if err != nil {
				t.Errorf("submit: %v", err)
			} else if !sub.Absorbed {
				accepted.Store(i, sub)
			}
		})
	}
	callers.Wait()
	n := 0
	accepted.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d of 50 duplicates were accepted, want 1", n)
	}
	check("pending", "")
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Fatal(err)
	}
	check("done", tallyman.Completed)
}

func TestProducer_ParkedStaysParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	var ran atomic.Int64
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("bad", func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		return tallyman.Result{}, tallyman.Reject(errBroken)
	})})
	c := tallyman.Command{ID: "a", Kind: "bad", Payload: []byte("x")}
	first := r.submit(t, c)
	parkedFirst, err := r.Wait(r.ctx, "a")
	if !errors.Is(err, tallyman.ErrParked) {
		t.Fatalf("got %+v, %v; want parked", parkedFirst, err)
	}
	r.emptied(t)
	got, err := r.Submit(r.ctx, c)
	if want := (tallyman.Submission{ID: "a", Sequence: first.Sequence, Absorbed: true, State: kvstate.Parked}); err != nil || got != want {
		t.Errorf("the same again: got %+v, %v; want %+v", got, err, want)
	}
	other := c
	other.Payload = []byte("y")
	if got, err := r.Submit(r.ctx, other); !errors.Is(err, tallyman.ErrConflict) {
		t.Errorf("another payload: got %+v, %v; want ErrConflict", got, err)
	}
	if again, err := r.Wait(r.ctx, "a"); !errors.Is(err, tallyman.ErrParked) || fmt.Sprint(again) != fmt.Sprint(parkedFirst) {
		t.Errorf("got %+v, %v; want it parked as before, %+v", again, err, parkedFirst)
	}
	if st, err := r.Commands().State(r.ctx); err != nil || st.LastSeq != first.Sequence {
		t.Errorf("the stream has come to %+v, %v; want nothing after sequence %d", st, err, first.Sequence)
	}
	if got := ran.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want once", got)
	}
}

func TestProducer_LargestBody(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: route(
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
		tallyman.Route{Kind: "fail", MaxAttempts: 1, Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, errBroken
		})},
	)})
	limit := r.Commands().Limit()
	payload := func(n int) []byte { return bytes.Repeat([]byte{'x'}, n) }
	// The largest body leaves room for headers: the first that is not refused.
	largest := limit
	for ; ; largest-- {
		_, err := r.Submit(r.ctx, tallyman.Command{ID: "first", Kind: "echo", Payload: payload(largest)})
		if err == nil {
			break
		}
		if !errors.Is(err, tallyman.ErrTooLarge) || limit-largest > 512 {
			t.Fatalf("a body of %d bytes under a limit of %d: %v", largest, limit, err)
		}
	}
	if largest == limit {
		t.Error("a body at the limit leaves no room for headers and was accepted")
	}
	r.submit(t, tallyman.Command{ID: "under", Kind: "echo", Payload: payload(largest - 1)})
	for id, want := range map[string]int{"first": largest, "under": largest - 1} {
		if got, err := r.Wait(r.ctx, id); err != nil || len(got.Result) != want {
			t.Errorf("%s: got a result of %d bytes, %v; want %d", id, len(got.Result), err, want)
		}
	}
	r.submit(t, tallyman.Command{ID: "other", Kind: "fail", Payload: payload(largest)})
	if got, err := r.Wait(r.ctx, "other"); !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted {
		t.Errorf("got %+v, %v; want parked as exhausted", got, err)
	}
	if rec := r.record(t, "other", parked); rec.Command == nil || len(rec.Command.Payload) != largest {
		t.Errorf("the parked record holds command %v, want its payload of %d bytes", rec.Command != nil, largest)
	}
	r.emptied(t)
}

func TestProducer_Full(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{MaxCommands: 2})
	p := r.NewProducer(tallyman.ProducerConfig{Confirm: 3 * time.Second})
	for _, id := range []string{"a", "b"} {
		if _, err := p.Submit(r.ctx, tallyman.Command{ID: id, Kind: "echo"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Submit(context.WithoutCancel(r.ctx), tallyman.Command{ID: "c", Kind: "echo"}); !errors.Is(err, tallyman.ErrPoolFull) {
		t.Errorf("into a full pool: %v, want ErrPoolFull", err)
	}
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	if sub, err := r.Submit(r.ctx, tallyman.Command{ID: "c", Kind: "echo"}); err != nil || sub.Absorbed {
		t.Errorf("once there is room: %+v, %v; want accepted", sub, err)
	}
}

// The server remembers the message id of what was purged for two minutes, and
// would swallow the command.
func TestProducer_WhatWasPurgedIsAcceptedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	first := r.submit(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")})
	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(r.ctx); err != nil {
		t.Fatal(err)
	}
	again := r.submit(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")})
	if again.Absorbed || again.Sequence <= first.Sequence {
		t.Errorf("got %+v after %+v was purged, want it accepted anew", again, first)
	}
	if third := r.submit(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}); !third.Absorbed || third.Sequence != again.Sequence {
		t.Errorf("got %+v, want it absorbed as a copy of %+v", third, again)
	}
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	if got, err := r.Wait(r.ctx, "a"); err != nil || string(got.Result) != "x" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestProducer_SealedStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	sealed := str.CachedInfo().Config
	sealed.Sealed = true
	if _, err := r.js.UpdateStream(r.ctx, sealed); err != nil {
		t.Fatal(err)
	}
	_, err = r.Submit(r.ctx, tallyman.Command{ID: "a", Kind: "echo"})
	if err == nil || errors.Is(err, tallyman.ErrUnconfirmed) || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("into a sealed stream: %v, want an error that says so and is final", err)
	}
}

func TestProducer_Refuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	limit := r.Commands().Limit()
	for name, c := range map[string]struct {
		command tallyman.Command
		want    error
	}{
		"an empty id":              {tallyman.Command{Kind: "k"}, tallyman.ErrInvalidID},
		"an id of 257 bytes":       {tallyman.Command{ID: strings.Repeat("x", 257), Kind: "k"}, tallyman.ErrInvalidID},
		"an id with a line break":  {tallyman.Command{ID: "a\nb", Kind: "k"}, tallyman.ErrInvalidID},
		"a kind of two tokens":     {tallyman.Command{ID: "a", Kind: "k.l"}, tallyman.ErrInvalidName},
		"a body one byte over":     {tallyman.Command{ID: "a", Kind: "k", Payload: make([]byte, limit+1)}, tallyman.ErrTooLarge},
		"a body and headers above": {tallyman.Command{ID: "a", Kind: "k", Payload: make([]byte, limit)}, tallyman.ErrTooLarge},
	} {
		if sub, err := r.Submit(r.ctx, c.command); !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v; want %v", name, sub, err, c.want)
		}
	}
	over, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.Submit(over, tallyman.Command{ID: "late", Kind: "k"}); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v, want context.Canceled", err)
	}
	p := r.NewProducer(tallyman.ProducerConfig{})
	for range 2 {
		if err := p.Close(r.ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := p.Submit(r.ctx, tallyman.Command{ID: "late", Kind: "k"}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("to a closed producer: %v, want an error at once", err)
	}
	if st, err := r.Commands().State(r.ctx); err != nil || st.LastSeq != 0 {
		t.Errorf("the stream holds %+v, %v; want nothing", st, err)
	}
}

// A server that was purged and restarted has forgotten every Nats-Msg-Id:
// nats-server#3272.
func TestProducer_FinishedIDAfterPurgeAndRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	var ran atomic.Int64
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: handle("once", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		return tallyman.Result{Body: c.Payload()}, nil
	})})
	c := tallyman.Command{ID: "a", Kind: "once", Payload: []byte("x")}
	first := r.submit(t, c)
	before, err := r.Wait(r.ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(r.ctx); err != nil {
		t.Fatal(err)
	}
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, r.ctx, "the connection", r.nc.IsConnected)

	if got, err := r.Submit(r.ctx, c); err != nil || !got.Absorbed || got.State != tallyman.Completed {
		t.Errorf("submitted again: got %+v, %v; want absorbed in state completed", got, err)
	}
	// As nats pub does it: no digest, no id but that of the message.
	copied := r.publish(t, "main.commands.default.once.a", "x", "Nats-Msg-Id", "a")
	if copied <= first.Sequence {
		t.Fatalf("got sequence %d: the server still knows the message id, and nothing is shown", copied)
	}
	eventually(t, r.ctx, "the copy to be absorbed", func() bool { return seen.count(tallyman.EventAbsorbed, "a") == 1 })
	r.emptied(t)
	if after, err := r.Wait(r.ctx, "a"); err != nil || !after.At.Equal(before.At) {
		t.Errorf("got the receipt %+v, %v; want it as before, %+v", after, err, before)
	}
	if got := ran.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want once", got)
	}
	report, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{})
	if err != nil || !report.Balanced || report.Absorbed != 1 {
		t.Errorf("got %+v, %v; want balanced books with one absorbed sequence", report, err)
	}
}
