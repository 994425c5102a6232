package facts

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
)

// answer is what the server says to a batch.
type answer struct {
	Error *jetstream.APIError `json:"error"`
	Seq   uint64              `json:"seq"`
	Batch string              `json:"batch"`
	Count uint64              `json:"count"`
}

// code is the error code of an answer; 0 means that the batch is stored.
func (a answer) code() jetstream.ErrorCode {
	if a.Error == nil {
		return 0
	}
	return a.Error.ErrorCode
}

// numbered makes a batch of messages: they get its id and their number.
func numbered(id string, messages ...*nats.Msg) []*nats.Msg {
	for i, m := range messages {
		m.Header.Set("Nats-Batch-Id", id)
		m.Header.Set("Nats-Batch-Sequence", number(uint64(i+1)))
	}
	return messages
}

// open sends all of a batch but the message that commits it, which it returns.
func (f *fact) open(id string, messages ...*nats.Msg) (last *nats.Msg) {
	f.Helper()
	messages = numbered(id, messages...)
	last = messages[len(messages)-1]
	for _, m := range messages[:len(messages)-1] {
		f.must(f.nc.PublishMsg(m))
	}
	last.Header.Set("Nats-Batch-Commit", "1")
	return last
}

// batch sends messages as one batch, of which only the last asks for an answer.
func (f *fact) batch(id string, messages ...*nats.Msg) answer {
	f.Helper()
	m, err := f.nc.RequestMsgWithContext(f.ctx, f.open(id, messages...))
	if err != nil {
		f.Fatalf("a batch of %d: got %v, want an answer", len(messages), err)
	}
	var a answer
	f.must(json.Unmarshal(m.Data, &a))
	return a
}

// refusedWith checks that a batch was refused with a code, and left nothing.
func (f *fact) refusedWith(what string, a answer, want jetstream.ErrorCode, s jetstream.Stream, held uint64) {
	f.Helper()
	if a.code() != want || a.Count != 0 {
		f.Errorf("%s: got %+v, error %+v, want code %d", what, a, a.Error, want)
	}
	if got := f.held(s); got != held {
		f.Errorf("%s: the stream holds %d messages, want %d as before", what, got, held)
	}
}

func atomically(c *jetstream.StreamConfig) { c.AllowAtomicPublish = true }

// records makes a bucket as the design has it, that takes batches.
func (f *fact) records() (s jetstream.Stream, bucket string) {
	f.Helper()
	_, n := f.bucket(2, 0)
	s, err := f.js.Stream(f.ctx, "KV_"+n)
	f.must(err)
	cfg := s.CachedInfo().Config
	cfg.AllowAtomicPublish = true
	s, err = f.js.UpdateStream(f.ctx, cfg)
	f.must(err)
	return s, n
}

const (
	codeStale      = jetstream.ErrorCode(10071)
	codeStaleToo   = jetstream.ErrorCode(10164)
	codeOff        = jetstream.ErrorCode(10174)
	codeIncomplete = jetstream.ErrorCode(10176)
	codeTooMany    = jetstream.ErrorCode(10199)
	codeSameMsgID  = jetstream.ErrorCode(10201)
	codeKeepTTL    = jetstream.ErrorCode(10052) // expiry per message cannot be switched off
)

func onBoth(t *testing.T, decision string, test func(f *fact)) {
	t.Helper()
	t.Parallel()
	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run("with "+where, func(t *testing.T) {
			t.Parallel()
			test(on(t, decision))
		})
	}
}

func TestFact12_ABatchTakesConsecutiveSequences(t *testing.T) {
	onBoth(t, "the revision of each write of a group is computed from the one answer: first = seq - count + 1", func(f *fact) {
		s, b := f.records()
		f.stored(keySubject(b, "before"))
		a := f.batch("one", message(keySubject(b, "a"), headExpect, "0"), message(keySubject(b, "b"), headExpect, "0"), message(keySubject(b, "c")))
		if a.code() != 0 || a.Count != 3 || a.Batch != "one" || a.Seq != 4 {
			f.Fatalf("got %+v, error %+v, want batch one of 3 messages, the last with sequence 4", a, a.Error)
		}
		for key, want := range map[string]uint64{"a": 2, "b": 3, "c": 4} {
			m, err := s.GetLastMsgForSubject(f.ctx, keySubject(b, key))
			f.must(err)
			if m.Sequence != want {
				f.Errorf("%s: got sequence %d, want %d", key, m.Sequence, want)
			}
		}
	})
}

func TestFact12_OneStaleEntryRefusesItsBatchAndIsNotNamed(t *testing.T) {
	onBoth(t, "a refused group is divided until the write that is to blame is alone", func(f *fact) {
		s, b := f.records()
		revision := f.stored(keySubject(b, "there"))
		a := f.batch("stale", message(keySubject(b, "a"), headExpect, "0"), message(keySubject(b, "there"), headExpect, "0"), message(keySubject(b, "b"), headExpect, "0"))
		f.refusedWith("one of three expects the wrong revision", a, codeStale, s, 1)
		if strings.Contains(a.Error.Description, "there") {
			f.Errorf("the refusal %q names the subject: the search for it may go", a.Error.Description)
		}
		a = f.batch("right", message(keySubject(b, "a"), headExpect, "0"), message(keySubject(b, "there"), headExpect, number(revision)), message(keySubject(b, "b"), headExpect, "0"))
		if a.code() != 0 {
			f.Errorf("with the right revision: got %+v", a.Error)
		}
	})
}

func TestFact12_ASubjectTwiceInABatch(t *testing.T) {
	onBoth(t, "a second write of the same key is held back until the first has left", func(f *fact) {
		s, b := f.records()
		a := f.batch("blind", message(keySubject(b, "a")), message(keySubject(b, "a")))
		if a.code() != 0 || f.held(s) != 2 {
			f.Errorf("two writes that expect nothing: got %+v, want both stored", a.Error)
		}
		a = f.batch("checked", message(keySubject(b, "b"), headExpect, "0"), message(keySubject(b, "b"), headExpect, "3"))
		f.refusedWith("the second expects the revision of the first", a, codeStaleToo, s, 2)

		c := f.commands(atomically)
		n := c.CachedInfo().Config.Name
		a = f.batch("copies", message(n+".a"), message(n+".a"))
		f.refusedWith("two copies of a command", a, codeRefused, c, 0)
		if a.Error.Description != subjectFull {
			f.Errorf("got %q, want %q", a.Error.Description, subjectFull)
		}
	})
}

func TestFact12_ABatchKeepsExpiryAndRollup(t *testing.T) {
	onBoth(t, "receipts go in groups: their expiry and what they roll up must work there", func(f *fact) {
		s, b := f.records()
		f.stored(keySubject(b, "a"))
		revision := f.stored(keySubject(b, "a"))
		a := f.batch("receipts",
			message(keySubject(b, "a"), headExpect, number(revision), headTTL, "1", headRollup, "sub"),
			message(keySubject(b, "b"), headExpect, "0", headTTL, "1"), message(keySubject(b, "c"), headExpect, "0"))
		if a.code() != 0 {
			f.Fatalf("got %+v, want it stored", a.Error)
		}
		if _, err := s.GetMsg(f.ctx, revision); !errors.Is(err, jetstream.ErrMsgNotFound) {
			f.Errorf("the revision below: got %v, want it rolled up", err)
		}
		f.eventually("both receipts expire, and what has no expiry stays", func() bool { return f.held(s) == 1 })
	})
}

func TestFact12_DuplicatesRefuseTheirBatch(t *testing.T) {
	onBoth(t, "a group of commands with one that was published before is divided like one with a stale write", func(f *fact) {
		s := f.commands(atomically)
		n := s.CachedInfo().Config.Name
		f.stored(n+".a", headMsgID, "a")
		a := f.batch("window", message(n+".b", headMsgID, "b"), message(n+".other", headMsgID, "a"))
		f.refusedWith("an id of the window", a, codeSameMsgID, s, 1)
		a = f.batch("inside", message(n+".b", headMsgID, "b"), message(n+".c", headMsgID, "b"))
		f.refusedWith("an id twice", a, codeSameMsgID, s, 1)
		a = f.batch("subject", message(n+".b", headMsgID, "b"), message(n+".a", headMsgID, "other"))
		f.refusedWith("a subject that is taken", a, codeRefused, s, 1)
		if a.Error.Description != subjectFull {
			f.Errorf("got %q, want %q", a.Error.Description, subjectFull)
		}
		a = f.batch("good", message(n+".b", headMsgID, "b"), message(n+".c", headMsgID, "c"))
		if a.code() != 0 || f.held(s) != 3 {
			f.Errorf("ids of refused batches are free again: got %+v", a.Error)
		}
		ack, err := f.publish(n+".b", headMsgID, "b")
		if err != nil || !ack.Duplicate || ack.Sequence != 2 {
			f.Errorf("a copy of what came in a batch: got %+v, %v, want a duplicate of sequence 2", ack, err)
		}
	})
}

func TestFact12_AFullStreamRefusesTheWholeBatch(t *testing.T) {
	onBoth(t, "a group that does not fit is sent one by one, and what fits is stored", func(f *fact) {
		s := f.commands(func(c *jetstream.StreamConfig) { c.AllowAtomicPublish, c.MaxMsgs = true, 2 })
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		a := f.batch("full", message(n+".b"), message(n+".c"))
		f.refusedWith("room for one of two", a, codeRefused, s, 1)
		if a.Error.Description != streamFull {
			f.Errorf("got %q, want %q", a.Error.Description, streamFull)
		}
	})
}

func TestFact12_ABatchHoldsAThousandMessages(t *testing.T) {
	onBoth(t, "a group ends at fewer messages, and its bytes are bounded by memory alone", func(f *fact) {
		s := f.commands(atomically)
		n := s.CachedInfo().Config.Name
		many := func(count, size int) (messages []*nats.Msg) {
			for i := range count {
				m := message(n + "." + number(uint64(i)))
				m.Data = make([]byte, size)
				messages = append(messages, m)
			}
			return messages
		}
		f.refusedWith("1001 messages", f.batch("large", many(1001, 1)...), codeTooMany, s, 0)
		if a := f.batch("most", many(1000, 20<<10)...); a.code() != 0 || a.Count != 1000 {
			f.Errorf("1000 messages of 20 KiB: got %+v, error %+v, want them stored", a, a.Error)
		}
	})
}

func TestFact12_AnOpenBatchIsInvisibleAndForgotten(t *testing.T) {
	t.Parallel()
	f, _ := onOwnServer(t, "a group whose sender died leaves nothing; until the server forgets it, it counts against the 50 of a stream", embedded.Config{
		ConfigFile: writeFile(t, `jetstream: {limits: {batch: {max_inflight_per_stream: 1, timeout: "300ms"}}}`),
	})
	s := f.commands(atomically)
	n := s.CachedInfo().Config.Name
	commit := f.open("open", message(n+".a1"), message(n+".a2"))
	a := f.batch("second", message(n+".c1"), message(n+".c2"))
	// The first message was told so, but asked for no answer.
	f.refusedWith("a batch too many", a, codeIncomplete, s, 0)
	if seq := f.stored(n + ".single"); seq != 1 {
		f.Errorf("a single message meanwhile: got sequence %d, want 1: an open batch takes none", seq)
	}
	f.eventually("the server forgets what was left open", func() bool {
		return f.batch("later", message(n+".d1"), message(n+".d2")).code() == 0
	})
	reply, err := f.nc.RequestMsgWithContext(f.ctx, commit)
	f.must(err)
	var late answer
	f.must(json.Unmarshal(reply.Data, &late))
	f.refusedWith("a commit that comes too late", late, codeIncomplete, s, 3)
}

func TestFact12_ABatchIsAllOrNothingWhenItsServerIsKilled(t *testing.T) {
	t.Parallel()
	for name, sync := range map[string]bool{"by default": false, "with sync always": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, srv := onOwnServer(t, "what became of a group without an answer is read back, entry by entry", embedded.Config{SyncAlways: sync}, nats.ReconnectBufSize(-1))
			s := f.commands(atomically)
			n := s.CachedInfo().Config.Name
			const size, rounds = 200, 8
			for round := range rounds {
				var messages []*nats.Msg
				for i := range size {
					messages = append(messages, message(n+"."+number(uint64(round))+"."+number(uint64(i))))
				}
				last := f.open("r"+number(uint64(round)), messages...)
				inbox, err := f.nc.SubscribeSync(f.nc.NewInbox())
				f.must(err)
				last.Reply = inbox.Subject
				// The first is never committed; the others may be, or not.
				if round > 0 {
					f.must(f.nc.PublishMsg(last))
				}
				if round%2 == 0 {
					f.must(f.nc.Flush()) // so that it has at least arrived
				}
				f.bounce(srv)
				var state *jetstream.StreamInfo
				f.eventually("the stream is back", func() bool {
					state, err = s.Info(f.ctx, jetstream.WithSubjectFilter(n+"."+number(uint64(round))+".*"))
					return err == nil
				})
				got := len(state.State.Subjects)
				if got != 0 && got != size {
					f.Errorf("round %d: the stream has %d of a batch of %d", round, got, size)
				}
				if round == 0 && got != 0 {
					f.Errorf("a batch that was never committed is stored")
				}
				if m, err := inbox.NextMsg(time.Millisecond); err == nil && len(m.Header) == 0 {
					// A server on its way down may refuse the commit, having let go of the batch.
					var a answer
					f.must(json.Unmarshal(m.Data, &a))
					if want := map[bool]int{true: size}[a.code() == 0]; got != want {
						f.Errorf("round %d: the batch was answered with %s, and the stream has %d of it, want %d", round, m.Data, got, want)
					}
				}
			}
		})
	}
}

func TestFact12_ALeaderThatStepsDownForgetsOpenBatches(t *testing.T) {
	t.Parallel()
	f := onCluster(t, "a group under way during an election ends refused or without an answer, and is sent one by one or read back")
	s := f.commands(atomically)
	n := s.CachedInfo().Config.Name
	last := f.open("moved", message(n+".a"), message(n+".b"), message(n+".c"))
	f.must(f.nc.Flush())
	first, now := s.CachedInfo().Cluster.Leader, ""
	f.eventually("another leader", func() bool {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		defer cancel()
		if now == "" || now == first { // the same one may be elected again
			_, _ = f.nc.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN."+n, nil) // refused while there is none
		}
		info, err := s.Info(ctx)
		if err == nil {
			now = info.Cluster.Leader
		}
		return now != "" && now != first
	})
	var m *nats.Msg
	f.eventually("somebody listens", func() bool { // one that was elected does so a moment later
		var err error
		m, err = f.nc.RequestMsgWithContext(f.ctx, last)
		if !errors.Is(err, nats.ErrNoResponders) {
			f.must(err)
		}
		return err == nil
	})
	var a answer
	f.must(json.Unmarshal(m.Data, &a))
	f.refusedWith("the commit comes to the new leader", a, codeIncomplete, s, 0)
}

func TestFact12_OthersSwitchBatchesOff(t *testing.T) {
	onBoth(t, "a group that is refused for this goes one by one, and a program says so", func(f *fact) {
		_, b := f.records()
		if a := f.batch("on", message(keySubject(b, "a")), message(keySubject(b, "b"))); a.code() != 0 {
			f.Fatalf("got %+v, want it stored", a.Error)
		}
		// The client library states the whole configuration that it knows. It keeps
		// its hands off our bucket only as long as it is not asked for markers.
		edited := jetstream.KeyValueConfig{Bucket: b, History: 3, Replicas: f.replicas}
		if _, err := f.js.CreateOrUpdateKeyValue(f.ctx, edited); apiCode(err) != codeKeepTTL {
			f.Errorf("CreateOrUpdateKeyValue without markers: got %v, want code %d", err, codeKeepTTL)
		}
		edited.LimitMarkerTTL = time.Second
		_, err := f.js.CreateOrUpdateKeyValue(f.ctx, edited)
		f.must(err)
		s, err := f.js.Stream(f.ctx, "KV_"+b)
		f.must(err)
		if s.CachedInfo().Config.AllowAtomicPublish {
			f.Errorf("the bucket still takes batches after CreateOrUpdateKeyValue")
		}
		a := f.batch("off", message(keySubject(b, "c")), message(keySubject(b, "d")))
		f.refusedWith("a batch after that", a, codeOff, s, 2)
		cfg := s.CachedInfo().Config
		cfg.AllowAtomicPublish = true
		_, err = f.js.UpdateStream(f.ctx, cfg)
		f.must(err)
		if a := f.batch("again", message(keySubject(b, "c")), message(keySubject(b, "d"))); a.code() != 0 {
			f.Errorf("switched on again: got %+v", a.Error)
		}
	})
}
