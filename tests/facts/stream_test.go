package facts

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
)

func TestFact06_TheMsgIDWindowForgetsWhatWasAcked(t *testing.T) {
	t.Parallel()
	f, srv := onOwnServer(t, "a second copy is refused by its subject while the first is stored, and absorbed by the record afterwards", embedded.Config{})
	s := f.commands(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.DiscardNewPerSubject = -1, false })
	f.durable(s, longLease, nil)
	n := s.CachedInfo().Config.Name
	f.stored(n+".a", headMsgID, "acked")
	f.stored(n+".b", headMsgID, "stored")
	f.one(s).ask("+ACK")
	f.eventually("the acked message is removed", func() bool { return f.held(s) == 1 })
	duplicate := func(when, id string, want bool) {
		t.Helper()
		var ack *jetstream.PubAck
		f.eventually("the server answers", func() (ok bool) {
			var err error
			ack, err = f.publish(n+".again", headMsgID, id)
			return err == nil
		})
		if ack.Duplicate != want {
			f.Errorf("%s, a second copy of the %s message: got duplicate %v, want %v", when, id, ack.Duplicate, want)
		}
	}
	duplicate("before a restart", "acked", true)
	duplicate("before a restart", "stored", true)
	f.bounce(srv)
	duplicate("after a restart", "stored", true)
	duplicate("after a restart", "acked", false)
}

const (
	codeRefused       = jetstream.ErrorCode(10077)
	subjectFull       = "maximum messages per subject exceeded"
	streamFull        = "maximum messages exceeded"
	streamFullOfBytes = "maximum bytes exceeded"
)

// refused checks that err is the refusal of a full stream, in these words.
func (f *fact) refused(what string, err error, words string) {
	f.Helper()
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		f.Errorf("%s: got %v, want an API error", what, err)
		return
	}
	if api.Code != 503 || api.ErrorCode != codeRefused || api.Description != words {
		f.Errorf("%s: got %d/%d %q, want 503/%d %q", what, api.Code, api.ErrorCode, api.Description, codeRefused, words)
	}
}

func TestFact07_ASecondCopyIsRefused(t *testing.T) {
	t.Parallel()
	const decision = "the id is the last token of the subject, so that the stream refuses a second copy without a time window"

	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run("it takes no sequence, with "+where, func(t *testing.T) {
			t.Parallel()
			f := on(t, "the books count every sequence (I3): one that a refused copy took would be a gap")
			s := f.commands(nil)
			n := s.CachedInfo().Config.Name
			f.stored(n+".a", headMsgID, "1")
			for i := range 10 {
				_, err := f.publish(n+".a", headMsgID, "other"+number(uint64(i)))
				f.refused("a second copy", err, subjectFull)
			}
			ack, err := f.publish(n+".a", headMsgID, "1")
			if err != nil || !ack.Duplicate || ack.Sequence != 1 {
				f.Errorf("the same Msg-Id within the window: got %+v, %v, want a duplicate of sequence 1", ack, err)
			}
			if got, want := f.stored(n+".b"), uint64(2); got != want {
				f.Errorf("next sequence: got %d, want %d", got, want)
			}
			info, err := s.Info(f.ctx)
			f.must(err)
			if got := info.State; got.LastSeq != 2 || got.Msgs != 2 || got.NumDeleted != 0 {
				f.Errorf("state: got %+v, want last sequence 2, 2 messages, none deleted", got)
			}
		})
		t.Run("and accepted once the first is deleted, at once, with "+where, func(t *testing.T) {
			t.Parallel()
			f := on(t, decision)
			s := f.commands(nil)
			n := s.CachedInfo().Config.Name
			f.stored(n + ".a")
			f.must(s.DeleteMsg(f.ctx, 1))
			if got, want := f.stored(n+".a"), uint64(2); got != want {
				f.Errorf("sequence after a delete: got %d, want %d", got, want)
			}
		})
	}
	t.Run("and accepted once the first is acked, at once, with one replica", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		f.one(s).ask("+ACK")
		if got, want := f.stored(n+".a"), uint64(2); got != want {
			f.Errorf("sequence after an ack: got %d, want %d", got, want)
		}
	})
	t.Run("and accepted some time after the first is acked, with three replicas", func(t *testing.T) {
		t.Parallel()
		f := onCluster(t, "a confirmed ack does not mean that the subject is free: whoever publishes the same id next looks at the record, and tries again")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		f.one(s).ask("+ACK")
		var err error
		f.eventually("the copy is accepted", func() bool {
			var ack *jetstream.PubAck
			if ack, err = f.publish(n + ".a"); err == nil && ack.Sequence != 2 {
				f.Errorf("sequence after an ack: got %d, want 2", ack.Sequence)
			}
			if err != nil {
				f.refused("a copy before the ack is applied", err, subjectFull)
			}
			return err == nil
		})
	})
	t.Run("also after a restart", func(t *testing.T) {
		t.Parallel()
		f, srv := onOwnServer(t, decision, embedded.Config{})
		s := f.commands(nil)
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		f.bounce(srv)
		f.eventually("the server answers", func() bool {
			_, err := f.publish(n + ".a")
			return apiCode(err) == codeRefused
		})
	})
	t.Run("in other words than any message of a full stream", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "10077 means already accepted only in the words of a full subject")
		s := f.commands(func(c *jetstream.StreamConfig) { c.MaxMsgs = 1 })
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		_, err := f.publish(n + ".b")
		f.refused("a message too many", err, streamFull)
		_, err = f.publish(n + ".a")
		f.refused("a second copy in a full stream", err, subjectFull)

		s = f.commands(func(c *jetstream.StreamConfig) { c.MaxBytes = 200 })
		n = s.CachedInfo().Config.Name
		f.stored(n + ".a")
		_, err = f.publish(n+".b", "Large", strings.Repeat("x", 200))
		f.refused("a byte too many", err, streamFullOfBytes)
	})
	t.Run("a subject that fits no stream gets no response", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "this error is told as: no such pool, or a subject of the wrong form")
		if _, err := f.publish("no.such.stream"); !errors.Is(err, jetstream.ErrNoStreamResponse) {
			f.Errorf("publish: got %v, want %v", err, jetstream.ErrNoStreamResponse)
		}
	})
}
