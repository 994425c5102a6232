//go:build unix

package e2e

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// publish puts a command into the stream past the producer, which would look
// for its record first.
func (s *stand) publish(t *testing.T, kind, id, payload, msgID string) *jetstream.PubAck {
	t.Helper()
	token, err := dedupe.Token(id)
	if err != nil {
		t.Fatal(err)
	}
	m := nats.NewMsg("main.commands.default." + kind + "." + string(token))
	m.Header.Set("Nats-Msg-Id", msgID)
	m.Data = []byte(payload)
	ack, err := s.js.PublishMsg(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return ack
}

func (s *stand) conflicts(t *testing.T, kind, id, payload string) {
	t.Helper()
	sub, err := s.pool.Submit(t.Context(), tallyman.Command{ID: id, Kind: kind, Payload: []byte(payload)})
	if !errors.Is(err, tallyman.ErrConflict) {
		t.Errorf("another command as %s: got %+v, %v; want a conflict", id, sub, err)
	}
}

func TestRepeat_IsAbsorbedAtEveryStage(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	absorbed := func(when string, state tallyman.State) {
		t.Helper()
		if sub := s.submit(t, "gate", "again", "gate"); !sub.Absorbed || sub.State != state {
			t.Errorf("submitted again %s: got %+v, want absorbed in state %q", when, sub, state)
		}
		s.conflicts(t, "gate", "again", "other gate")
		s.conflicts(t, "log", "again", "gate")
	}
	if sub := s.submit(t, "gate", "again", "gate"); sub.Absorbed || sub.Sequence != 1 {
		t.Errorf("submitted first: got %+v, want accepted at sequence 1", sub)
	}
	absorbed("while it waits", "")
	s.worker(t)
	s.began(t, "again", 1)
	absorbed("while it runs", "")
	s.open(t, "gate")
	s.receipt(t, "again")
	s.settle(t)
	absorbed("after completion", tallyman.Completed)
	if got := len(s.of(t, "begin", "again")); got != 1 {
		t.Errorf("it began %d times, want once", got)
	}
	checkBooks(t, s)
}

func TestRepeat_AfterTheServerForgotTheMessageID(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	s.worker(t)
	s.submit(t, "log", "old", "x")
	before := s.receipt(t, "old")
	s.settle(t)
	if ack := s.publish(t, "log", "old", "x", "old"); !ack.Duplicate {
		t.Fatal("the server forgot the message id too early to show anything")
	}
	s.server.kill()
	s.restartServer(t)
	await(t, "the connection to be back", s.nc.IsConnected)
	ack := s.publish(t, "log", "old", "x", "old")
	if ack.Duplicate {
		t.Fatal("the server still knows the message id: the copy did not get in")
	}
	await(t, "the copy to be absorbed", func() bool { return s.event(t, "old", "absorbed") })
	s.settle(t)
	if after := s.receipt(t, "old"); !after.At.Equal(before.At) {
		t.Errorf("the receipt of %v became one of %v", before.At, after.At)
	}
	// A copy with another payload is no copy.
	odd := s.publish(t, "fail", "old", "0", "odd")
	await(t, "the conflict to be parked", func() bool {
		e, err := s.pool.Records().Read(t.Context(), kvstate.ConflictKey(odd.Sequence))
		return err == nil && e.Record != nil && e.Record.Reason == kvstate.ReasonConflict
	})
	s.settle(t)
	if got := len(s.of(t, "begin", "old")); got != 1 {
		t.Errorf("it began %d times, want once", got)
	}
	checkBooks(t, s)
}

func TestRecord_DeletedInMidRun(t *testing.T) {
	t.Parallel()
	for _, killed := range []bool{false, true} {
		name := "and the worker goes on"
		if killed {
			name = "and the worker dies"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, short)
			a := s.worker(t)
			s.submit(t, "steps", "lost", "40 50ms")
			await(t, "three steps", func() bool { return len(s.of(t, "step", "lost")) >= 3 })
			kv, err := s.js.KeyValue(t.Context(), tallyman.DefaultPool)
			if err != nil {
				t.Fatal(err)
			}
			if killed {
				a.kill()
				s.worker(t)
			}
			if err := kv.Delete(t.Context(), "lost"); err != nil {
				t.Fatal(err)
			}
			s.receipt(t, "lost")
			s.settle(t)
			checkBooks(t, s)
		})
	}
}

func TestFailing_ThousandThatWaitDoNotHoldUpAFreshOne(t *testing.T) {
	t.Parallel()
	const n = 1000
	settings := short
	settings.BackoffMin, settings.BackoffMax = 10*time.Minute, 20*time.Minute
	s := newStand(t, settings)
	s.worker(t)
	submitted := make(chan error, n)
	commands := func(yield func(tallyman.Command) bool) {
		for i := range n {
			if !yield(tallyman.Command{ID: "f-" + strconv.Itoa(i), Kind: "fail", Payload: []byte("99")}) {
				return
			}
		}
	}
	producer := s.pool.NewProducer(tallyman.ProducerConfig{})
	if err := producer.SubmitMany(t.Context(), commands, func(_ int, _ tallyman.Submission, err error) { submitted <- err }); err != nil {
		t.Fatal(err)
	}
	for range n {
		if err := <-submitted; err != nil {
			t.Fatal(err)
		}
	}
	if err := producer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "all to have failed", func() bool {
		failed := 0
		for _, l := range s.lines(t) {
			if l.what == "event" && l.detail == "retried" {
				failed++
			}
		}
		return failed >= n
	})
	s.submit(t, "log", "fresh", "x")
	s.receipt(t, "fresh")
	q, err := s.pool.Commands().Queue(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	if q.Outstanding < n {
		t.Errorf("%d commands wait for their retry, want %d: nothing was shown", q.Outstanding, n)
	}
	checkBooks(t, s)
}
