package desk

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

func TestRequeue(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.parked(t, "a", "x")
	out, err := r.desk.Requeue(r.ctx, ann, "a")
	if err != nil || out.Already || out.Sequence != 2 {
		t.Fatalf("got %+v, %v, want sequence 2", out, err)
	}
	rec := r.record(t, "a")
	last := rec.Trail[len(rec.Trail)-1]
	if rec.State != kvstate.Requeued || rec.Attempt != 0 || rec.Error != "" || rec.Reason != "" || rec.Offset != 7 || rec.Owner != "ann" ||
		last.Owner != "ann" || last.Note != ann.Why || rec.Command == nil || string(rec.Command.Payload) != "x" {
		t.Errorf("got %+v", rec)
	}
	r.balanced(t)

	again, err := r.desk.Requeue(r.ctx, bob, "a")
	if err != nil || !again.Already || again.Sequence != 2 {
		t.Errorf("a second time: got %+v, %v, want already at sequence 2", again, err)
	}
	healthy := newSeen(false)
	r.work(t, healthy)
	receipt, err := r.Wait(r.ctx, "a")
	if err != nil || string(receipt.Result) != "x" || receipt.Attempt != 1 {
		t.Errorf("got %+v, %v, want the result of attempt 1", receipt, err)
	}
	r.emptied(t)
	if len(healthy.attempts) != 1 || healthy.offsets[0] != 7 {
		t.Errorf("it ran with attempts %v from offsets %v, want once from 7", healthy.attempts, healthy.offsets)
	}
	if rec := r.record(t, "a"); rec.Command != nil || len(rec.Seqs) != 2 {
		t.Errorf("the receipt holds the command, or not both sequences: %+v", rec)
	}
	if got := r.balanced(t); got.Completed != 1 || got.LastSeq != 2 || got.Absorbed != 0 {
		t.Errorf("got %+v", got)
	}
	_, err = r.desk.Requeue(r.ctx, ann, "a")
	if !errors.Is(err, ErrRefused) || !errors.Is(err, kvstate.ErrIllegalTransition) {
		t.Fatalf("of a completed one: got %v, want it refused", err)
	}
	for _, want := range []string{`"a"`, `"completed"`, `"requeued"`, "another id"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

// TestRequeue_CutOff is a crash between the record and the publication.
func TestRequeue_CutOff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		sent bool
	}{{"before it was sent", false}, {"after it was sent", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, brisk)
			r.placed(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}, kvstate.ReasonExhausted)
			dead := errors.New("the machine is gone")
			cut := New(r.Commands(), r.Records())
			cut.commands = &flaky{commands: r.Commands(), fail: func(command.Envelope) (bool, error) { return c.sent, dead }}
			if _, err := cut.Requeue(r.ctx, ann, "a"); !errors.Is(err, dead) || !strings.Contains(err.Error(), "requeue it once more") {
				t.Fatalf("got %v, want the failure and what to do", err)
			}
			if got := r.record(t, "a").State; got != kvstate.Requeued {
				t.Fatalf("got state %s, want requeued", got)
			}
			counts, err := r.desk.RequeueMany(r.ctx, bob, Bulk{Filter: Filter{Reason: kvstate.ReasonExhausted}})
			want := Counts{Matched: 1, Done: 1}
			if c.sent {
				want = Counts{}
			}
			if err != nil || counts != want {
				t.Errorf("got %+v, %v, want %+v", counts, err, want)
			}
			r.balanced(t)
			r.work(t, newSeen(false))
			if receipt, err := r.Wait(r.ctx, "a"); err != nil || string(receipt.Result) != "x" {
				t.Errorf("got %+v, %v", receipt, err)
			}
			r.emptied(t)
			if got := r.balanced(t); got.LastSeq != 2 || got.Absorbed != 0 {
				t.Errorf("got %+v, want it published once", got)
			}
		})
	}
}

func TestRequeue_UnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "a", Kind: "echo"}, kvstate.ReasonExhausted)
	tries := 0
	r.desk.commands = &flaky{commands: r.Commands(), fail: func(command.Envelope) (bool, error) {
		if tries++; tries == 1 {
			return true, stream.ErrIndeterminate
		}
		return false, nil
	}}
	out, err := r.desk.Requeue(r.ctx, ann, "a")
	if err != nil || out.Already || out.Sequence != 2 || tries != 2 {
		t.Errorf("got %+v, %v after %d tries, want sequence 2 by reading back", out, err, tries)
	}
	r.balanced(t)
}

// TestRequeue_LateAck has the parked delivery still in the stream, since its ack
// is under way. When that arrives, it must not take out the command that runs anew.
func TestRequeue_LateAck(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	c := tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}
	seq := r.submit(t, c)
	env, err := dedupe.Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := (&kvstate.Record{ID: "a", Kind: "echo", Queue: "default", Digest: env.Digest, Seqs: []uint64{seq}}).Advance(kvstate.Parked, "worker-1", "rejected", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Reason, rec.Command = kvstate.ReasonRejected, &env.Command
	if _, err := r.Records().WriteWait(r.ctx, "a", rec); err != nil {
		t.Fatal(err)
	}
	out, err := r.desk.Requeue(r.ctx, ann, "a")
	if err != nil || out.Sequence != seq+1 {
		t.Fatalf("got %+v, %v, want a new sequence", out, err)
	}
	if _, err := r.Commands().Get(r.ctx, seq); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("the parked delivery: got %v, want it gone", err)
	}
	r.balanced(t)
	r.work(t, newSeen(false))
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Error(err)
	}
	r.emptied(t)
	r.balanced(t)
}

func TestRequeue_PayloadBeside(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	payload := bytes.Repeat([]byte("x"), 100_000)
	aside := func(rec *kvstate.Record) {
		stored := make(chan error, 1)
		if err := r.Records().Put(kvstate.PayloadKey("a"), payload, false, func(_ uint64, err error) { stored <- err }); err != nil {
			t.Fatal(err)
		}
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
		rec.Command.Payload = nil
	}
	key := r.placed(t, tallyman.Command{ID: "a", Kind: "echo", Payload: payload}, kvstate.ReasonRejected, aside)
	dead := errors.New("the machine is gone")
	cut := New(r.Commands(), r.Records())
	cut.commands = &flaky{commands: r.Commands(), fail: func(command.Envelope) (bool, error) { return false, dead }}
	if _, err := cut.Requeue(r.ctx, ann, "a"); !errors.Is(err, dead) {
		t.Fatal(err)
	}
	if e, err := r.Records().Read(r.ctx, kvstate.PayloadKey(key)); err != nil || !bytes.Equal(e.Raw, payload) {
		t.Fatalf("the payload must stay until it is in the stream: %v", err)
	}
	if counts, err := r.desk.RequeueMany(r.ctx, ann, Bulk{}); err != nil || counts != (Counts{Matched: 1, Done: 1}) {
		t.Fatalf("got %+v, %v", counts, err)
	}
	if e, err := r.Records().Read(r.ctx, kvstate.PayloadKey(key)); err != nil || e.Raw != nil {
		t.Errorf("the payload is still there, or %v", err)
	}
	r.work(t, newSeen(false))
	if receipt, err := r.Wait(r.ctx, "a"); err != nil || !bytes.Equal(receipt.Result, payload) {
		t.Errorf("got %d bytes, %v", len(receipt.Result), err)
	}
	r.emptied(t)
	r.balanced(t)
}

// TestRequeue_RawAtTheLimit sends back what came without headers and filled a
// whole server message.
func TestRequeue_RawAtTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	payload := bytes.Repeat([]byte("x"), int(r.nc.MaxPayload()))
	stop := r.work(t, newSeen(true))
	if _, err := r.nc.Request("main.commands.default.frail.a", payload, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(r.ctx, "a"); !errors.Is(err, tallyman.ErrParked) {
		t.Fatal(err)
	}
	stop()
	if out, err := r.desk.Requeue(r.ctx, ann, "a"); err != nil || out.Sequence != 2 {
		t.Fatalf("got %+v, %v", out, err)
	}
	stored, err := r.Commands().Get(r.ctx, 2)
	if err != nil || !bytes.Equal(stored.Payload, payload) {
		t.Errorf("got %d bytes, %v", len(stored.Payload), err)
	}
	r.balanced(t)
}

func TestRequeue_Refused(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "late", Kind: "echo", NotAfter: time.Now().Add(-time.Hour)}, kvstate.ReasonExpired)
	r.submit(t, tallyman.Command{ID: "pending", Kind: "echo"})
	aside := (&kvstate.Record{ID: "x", Kind: "echo"})
	aside, err := aside.Advance(kvstate.Parked, "worker-1", "conflict", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	aside.Reason = kvstate.ReasonConflict
	if _, err := r.Records().WriteWait(r.ctx, kvstate.ConflictKey(9), aside); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    string
		want  error
		texts []string
	}{
		{"late", ErrRefused, []string{"was to start by", "another id"}},
		{"pending", ErrRefused, []string{`from "none" to "requeued"`, "cancel it"}},
		{"_conflict/9", ErrRefused, []string{"stands for another command", "discard it"}},
		{"nobody", ErrNotFound, []string{"never submitted"}},
		{"", command.ErrInvalidID, nil},
	} {
		_, err := r.desk.Requeue(r.ctx, ann, c.id)
		if !errors.Is(err, c.want) {
			t.Errorf("%q: got %v, want %v", c.id, err, c.want)
			continue
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q: %q is missing in: %v", c.id, text, err)
			}
		}
	}
	for _, act := range []Act{{}, {By: " "}, {By: "a\nb"}, {By: "\xff"}, {By: strings.Repeat("x", 129)}, {By: "a", Why: strings.Repeat("x", 513)}} {
		if _, err := r.desk.Requeue(r.ctx, act, "late"); !errors.Is(err, ErrAct) {
			t.Errorf("%+v: got %v, want %v", act, err, ErrAct)
		}
	}
}

// TestRequeue_ForeignCopy has a copy with another payload in the stream, which
// no worker has parked yet.
func TestRequeue_ForeignCopy(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}, kvstate.ReasonExhausted)
	if _, err := r.nc.Request("main.commands.default.echo.a", []byte("other"), time.Minute); err != nil {
		t.Fatal(err)
	}
	_, err := r.desk.Requeue(r.ctx, ann, "a")
	if !errors.Is(err, errForeign) {
		t.Fatalf("got %v, want %v", err, errForeign)
	}
	r.work(t, newSeen(false))
	r.emptied(t)
	if out, err := r.desk.Requeue(r.ctx, ann, "a"); err != nil || out.Sequence != 3 {
		t.Errorf("once the other is parked: got %+v, %v", out, err)
	}
	if receipt, err := r.Wait(r.ctx, "a"); err != nil || string(receipt.Result) != "x" {
		t.Errorf("got %+v, %v", receipt, err)
	}
	r.emptied(t)
	if got := r.balanced(t); got.Parked != 1 {
		t.Errorf("got %+v, want the other parked", got)
	}
}

func TestRequeue_TwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	const n = 300
	for i := range n {
		r.placed(t, tallyman.Command{ID: "c-" + string(rune('a'+i%26)) + strings.Repeat("x", i/26), Kind: "echo"}, kvstate.ReasonExhausted)
	}
	r.work(t, newSeen(false))
	var wg sync.WaitGroup
	counts := make([]Counts, 2)
	for i, act := range []Act{ann, bob} {
		wg.Go(func() {
			var err error
			if counts[i], err = r.desk.RequeueMany(r.ctx, act, Bulk{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := counts[0].Done + counts[1].Done; got < n {
		t.Errorf("got %+v: %d requeued in all, want %d at least", counts, got, n)
	}
	if counts[0].Failed+counts[1].Failed > 0 {
		t.Errorf("got %+v, want no failures", counts)
	}
	r.emptied(t)
	if got := r.balanced(t); got.Completed != n || got.Parked != 0 {
		t.Errorf("got %+v, want %d completed", got, n)
	}
}
