package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestWorker_PlainPublish(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("resize", echo)})

	t.Run("with a message id only is a submission", func(t *testing.T) {
		t.Parallel()
		r.publish(t, "main.commands.default.resize.img-7", `{"w":80}`, "Nats-Msg-Id", "img-7")
		got, err := r.Wait(r.ctx, "img-7")
		if err != nil || string(got.Result) != `{"w":80}` {
			t.Errorf("got %+v, %v; want its payload", got, err)
		}
		sub, err := r.Submit(r.ctx, tallyman.Command{ID: "img-7", Kind: "resize", Payload: []byte(`{"w":80}`)})
		if err != nil || !sub.Absorbed {
			t.Errorf("the same through Submit: %+v, %v; want absorbed", sub, err)
		}
	})
	for name, header := range map[string][]string{
		"a digest that disagrees": {command.HeaderDigest, "0123456789abcdef0123456789abcdef"},
		"an id that disagrees":    {command.HeaderID, "another"},
		"a deadline that is none": {command.HeaderNotAfter, "tomorrow"},
	} {
		t.Run("with "+name+" parks as malformed under its sequence", func(t *testing.T) {
			t.Parallel()
			id := strings.ReplaceAll(name, " ", "-")
			seq := r.publish(t, "main.commands.default.resize."+id, "body", header...)
			rec := r.recordAt(t, kvstate.MalformedKey(seq), parked)
			if rec.Reason != kvstate.ReasonMalformed || !rec.Accounts(seq) || rec.Command == nil || string(rec.Command.Payload) != "body" {
				t.Errorf("got %+v, want malformed, accounting for %d, with its body", rec, seq)
			}
			if !strings.Contains(rec.Error, header[1]) {
				t.Errorf("error %q, want %q in it", rec.Error, header[1])
			}
			if e := r.entry(t, command.Token(id)); e.Raw != nil {
				t.Errorf("something lies at the id: %+v", e)
			}
		})
	}
	t.Run("with a token that spells no id parks as malformed", func(t *testing.T) {
		t.Parallel()
		seq := r.publish(t, "main.commands.default.resize.a=zz", "body")
		rec := r.recordAt(t, kvstate.MalformedKey(seq), parked)
		if rec.Reason != kvstate.ReasonMalformed || rec.Command == nil || string(rec.Command.Payload) != "body" {
			t.Errorf("got %+v, want malformed with its body", rec)
		}
	})
	t.Run("with a body that leaves no room for its parked record is parked all the same", func(t *testing.T) {
		t.Parallel()
		body := strings.Repeat("x", int(r.nc.MaxPayload())-200)
		seq := r.publish(t, "main.commands.default.resize.large", body, command.HeaderDigest, "no")
		rec := r.recordAt(t, kvstate.MalformedKey(seq), parked)
		if rec.Command == nil || len(rec.Command.Payload) != 0 {
			t.Fatalf("got %+v, want the command without its payload", rec)
		}
		e := r.entry(t, kvstate.PayloadKey(kvstate.MalformedKey(seq)))
		if string(e.Raw) != body {
			t.Errorf("%d bytes are kept beside the record, want the payload of %d", len(e.Raw), len(body))
		}
	})
}

func TestInvariant_I6_AConflictIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: route(
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
		tallyman.Route{Kind: "other", Handler: tallyman.HandlerFunc(echo)},
	)})
	r.submit(t, tallyman.Command{ID: "c", Kind: "echo", Payload: []byte("first")})
	first, err := r.Wait(r.ctx, "c")
	if err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	for _, c := range []struct{ kind, payload string }{{"echo", "second"}, {"other", "first"}} {
		seq := r.publish(t, "main.commands.default."+c.kind+".c", c.payload)
		rec := r.recordAt(t, kvstate.ConflictKey(seq), parked)
		if rec.Reason != kvstate.ReasonConflict || rec.ID != "c" || !rec.Accounts(seq) || rec.Command == nil ||
			rec.Command.Kind != c.kind || string(rec.Command.Payload) != c.payload {
			t.Errorf("%s %s: got %+v, want it whole, parked as a conflict", c.kind, c.payload, rec)
		}
	}
	r.emptied(t)
	again, err := r.Wait(r.ctx, "c")
	if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("the receipt is now %+v, %v; want %+v", again, err, first)
	}
}

func TestWorker_Rival(t *testing.T) {
	t.Parallel()
	// Two copies of one command in two queues, as they come about when the
	// duplicate window has passed.
	r := newRig(t, brisk, tallyman.Topology{Queues: []string{"default", "side"}})
	var ran atomic.Int64
	entered, release := make(chan struct{}, 2), make(chan struct{})
	mux := route(tallyman.Route{Kind: "slow", Eager: true, Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		entered <- struct{}{}
		<-release
		return tallyman.Result{Body: []byte("once")}, nil
	})})
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Mux: mux, Queues: []string{"default", "side"}, Observe: seen.observe})
	r.publish(t, "main.commands.default.slow.r", "same")
	<-entered
	second := r.publish(t, "main.commands.side.slow.r", "same")
	eventually(t, r.ctx, "the copy's absorption", func() bool { return r.entry(t, kvstate.AbsorbedKey(second)).Raw != nil })
	if got := string(r.entry(t, kvstate.AbsorbedKey(second)).Raw); got != "r" {
		t.Errorf("the absorbed sequence names %q, want the id", got)
	}
	close(release)
	if got, err := r.Wait(r.ctx, "r"); err != nil || string(got.Result) != "once" {
		t.Errorf("got %+v, %v; want the one result", got, err)
	}
	r.emptied(t)
	if n := ran.Load(); n != 1 {
		t.Errorf("ran %d times, want once", n)
	}
	third := r.publish(t, "main.commands.side.slow.r", "same")
	eventually(t, r.ctx, "a late copy's absorption", func() bool { return r.entry(t, kvstate.AbsorbedKey(third)).Raw != nil })
	r.emptied(t)
}

func TestInvariant_I1_OneReceiptForTwoRunningCopies(t *testing.T) {
	t.Parallel()
	// Both copies run, since neither has claimed; one receipt comes of it.
	settings := brisk
	settings.Lease, settings.MaxAttempts = 500*time.Millisecond, 100 // the loser says nothing to the server
	r := newRig(t, settings, tallyman.Topology{Queues: []string{"default", "side"}})
	entered, release := make(chan struct{}, 2), make(chan struct{})
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Queues: []string{"default", "side"}, Observe: seen.observe, Mux: handle("slow", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		entered <- struct{}{}
		<-release
		return tallyman.Result{Body: []byte(c.Queue())}, nil
	})})
	a := r.publish(t, "main.commands.default.slow.r", "same")
	b := r.publish(t, "main.commands.side.slow.r", "same")
	<-entered
	<-entered
	close(release)
	first, err := r.Wait(r.ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	last, err := r.Wait(r.ctx, "r")
	if err != nil || fmt.Sprint(first) != fmt.Sprint(last) {
		t.Errorf("the receipt went from %+v to %+v, %v", first, last, err)
	}
	if n := seen.count(tallyman.EventCompleted, "r"); n != 1 {
		t.Errorf("%d receipts, want 1", n)
	}
	rec := r.record(t, "r", func(*kvstate.Record) bool { return true })
	for _, seq := range []uint64{a, b} {
		if !rec.Accounts(seq) && r.entry(t, kvstate.AbsorbedKey(seq)).Raw == nil {
			t.Errorf("nothing accounts for sequence %d", seq)
		}
	}
}

func TestWorker_CorruptRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	sub := r.submit(t, tallyman.Command{ID: "c", Kind: "echo", Payload: []byte("whole")})
	garbage := []byte("\xde\x00\x01this is no record")
	if err := r.Records().PutWait(r.ctx, "c", garbage, 0); err != nil {
		t.Fatal(err)
	}
	damaged := r.entry(t, "c")
	if damaged.Err == nil {
		t.Fatalf("the garbage decodes: %+v", damaged)
	}
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	rec := r.record(t, "c", parked)
	if rec.Reason != kvstate.ReasonCorrupt || !rec.Accounts(sub.Sequence) || rec.Command == nil || string(rec.Command.Payload) != "whole" {
		t.Errorf("got %+v, want the command whole, parked as corrupt", rec)
	}
	kept := kvstate.CorruptKey("c", damaged.Revision)
	if !strings.Contains(rec.Error, string(kept)) {
		t.Errorf("error %q does not say that the bytes lie under %s", rec.Error, kept)
	}
	if got := r.entry(t, kept).Raw; string(got) != string(garbage) {
		t.Errorf("kept %q, want %q", got, garbage)
	}
	r.emptied(t)
}

func TestWorker_Queues(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{Queues: []string{"a", "b"}})
	t.Run("each command comes through its own", func(t *testing.T) {
		start(t, r.Pool, tallyman.WorkerConfig{Queues: []string{"a", "b"}, Mux: handle("which", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{Body: []byte(c.Queue())}, nil
		})})
		for _, q := range []string{"a", "b"} {
			r.submit(t, tallyman.Command{ID: "in-" + q, Kind: "which", Queue: q})
		}
		for _, q := range []string{"a", "b"} {
			if got, err := r.Wait(r.ctx, "in-"+q); err != nil || string(got.Result) != q {
				t.Errorf("queue %s: %+v, %v", q, got, err)
			}
		}
	})
	t.Run("one that is missing is named, with the way to make it", func(t *testing.T) {
		w, err := r.NewWorker(tallyman.WorkerConfig{Queues: []string{"a", "gone"}, Mux: handle("echo", echo), Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		err = w.Run(r.ctx)
		if !errors.Is(err, tallyman.ErrNoQueue) || !strings.Contains(err.Error(), "tallyman init --pool main --queue gone") {
			t.Errorf("got %v, want ErrNoQueue that names the command", err)
		}
	})
	t.Run("one with another lease is refused", func(t *testing.T) {
		cons, err := r.js.Consumer(r.ctx, "main_commands", "b")
		if err != nil {
			t.Fatal(err)
		}
		cfg := cons.CachedInfo().Config
		cfg.AckWait = 7 * time.Second
		if _, err := r.js.UpdateConsumer(r.ctx, "main_commands", cfg); err != nil {
			t.Fatal(err)
		}
		w, err := r.NewWorker(tallyman.WorkerConfig{Queues: []string{"b"}, Mux: handle("echo", echo), Logger: silent})
		if err != nil {
			t.Fatal(err)
		}
		err = w.Run(r.ctx)
		if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "7s") {
			t.Errorf("got %v, want ErrSettings that names both leases", err)
		}
	})
}

func TestPool_Settings(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	other := tallyman.Settings{Lease: 5 * time.Second}
	if err := tallyman.Create(r.ctx, r.nc, "main", other, tallyman.Topology{}); !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "--lease 5s") {
		t.Errorf("create with another lease: %v, want ErrSettings that names the flag", err)
	}
	if err := r.Settings().Require(other); !errors.Is(err, tallyman.ErrSettings) {
		t.Errorf("require another lease: %v, want ErrSettings", err)
	}
	if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Errorf("create again with no wish: %v", err)
	}
	if got := open(t, r.nc).Settings(); got != r.Settings() {
		t.Errorf("settings went from %+v to %+v", r.Settings(), got)
	}
	if err := tallyman.Create(r.ctx, r.nc, "main", other, tallyman.Topology{Change: true}); err != nil {
		t.Fatal(err)
	}
	q, err := r.Commands().Queue(r.ctx, command.DefaultQueue)
	if err != nil || q.Lease != other.Lease || open(t, r.nc).Settings().Lease != other.Lease {
		t.Errorf("after the change: queue %+v, %v; want a lease of %v everywhere", q, err, other.Lease)
	}
	if _, err := tallyman.Open(r.ctx, r.nc, "nowhere"); !errors.Is(err, tallyman.ErrNoPool) || !strings.Contains(err.Error(), "tallyman init --pool nowhere") {
		t.Errorf("open a pool that is not there: %v, want ErrNoPool that names the command", err)
	}
}

func TestWorker_IDsEndToEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	ids := []string{
		"a", " a", "a ", "a b", "a.b", "*", ">", "..", "a:b", "123", "end.", "=", "=41", "_", "_pool", "a/b", "/",
		"\U0001F600", "\u00e9", "e\u0301", "\u00a0a", "\u2028", strings.Repeat("x", 256), strings.Repeat("\u20ac", 85),
	}
	for _, id := range ids {
		if sub := r.submit(t, tallyman.Command{ID: id, Kind: "echo", Payload: []byte(id)}); sub.Absorbed {
			t.Errorf("%q was taken for a copy", id)
		}
	}
	for _, id := range ids {
		got, err := r.Wait(r.ctx, id)
		if err != nil || got.ID != id || string(got.Result) != id {
			t.Errorf("%q: got %+v, %v", id, got, err)
		}
		if _, err := dedupe.Token(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	r.emptied(t)
}
