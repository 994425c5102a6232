package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// away plays the server to a group: it keeps what it gets until it is told to
// answer, one request after the other.
type away struct {
	t        *testing.T
	requests []request
	open     []sent            // of the batch that is being sent
	writes   map[string][]byte // by number: the data of those whose end has not been told

	stored   map[string]int   // by subject: how often
	seq      uint64           // of the newest that is stored
	stale    map[string]bool  // subjects whose writes are refused
	denied   map[string]bool  // subjects that this user may not write to
	allowed  int              // messages in a batch; 0: batches are off
	unknown  bool             // a server that knows no batches
	posting  map[string]error // what Post and Lend say to a subject
	closed   bool
	sizes    []int // of batches, refused ones too
	batchIDs map[string]bool
}

// sent is a message as it went out, whatever becomes of it afterwards.
type sent struct {
	subject string
	head    nats.Header
	data    []byte
}

// headerWrite has the number of a write, by which its data is known.
const headerWrite = "Write"

type request struct {
	batch []sent // one that has no id goes by itself
	on    OnReply
}

func newAway(t *testing.T) *away {
	t.Helper()
	return &away{
		t: t, stored: map[string]int{}, stale: map[string]bool{}, denied: map[string]bool{}, posting: map[string]error{},
		allowed: 1000, batchIDs: map[string]bool{}, writes: map[string][]byte{},
	}
}

func (a *away) take(m *nats.Msg) (sent, error) {
	if a.closed {
		return sent{}, ErrClosed
	}
	head := nats.Header{}
	for k, v := range m.Header {
		head[k] = append([]string(nil), v...)
	}
	if want, open := a.writes[head.Get(headerWrite)]; !open || !bytes.Equal(m.Data, want) {
		a.t.Errorf("%s goes out with %v and %.40q, want what it was given; its end is yet to be told: %v", m.Subject, head, m.Data, open)
	}
	return sent{m.Subject, head, bytes.Clone(m.Data)}, a.posting[m.Subject]
}

func (a *away) Post(m *nats.Msg) error {
	s, err := a.take(m)
	if err != nil {
		a.open = nil
		return err
	}
	if id := s.head.Get(headerBatchID); id == "" || s.head.Get(headerBatchCommit) != "" || m.Reply != "" {
		a.t.Errorf("%s was posted outside of a batch, or commits one", m.Subject)
	}
	a.open = append(a.open, s)
	return nil
}

func (a *away) Lend(m *nats.Msg, on OnReply) error {
	s, err := a.take(m)
	if err != nil {
		a.open = nil
		return err
	}
	m.Reply = "answers"
	batch := append(a.open, s)
	a.open = nil
	id := s.head.Get(headerBatchID)
	if id == "" && len(batch) > 1 {
		a.t.Errorf("%s goes by itself, in the middle of a batch", m.Subject)
	}
	if id != "" {
		if a.batchIDs[id] {
			a.t.Errorf("batch id %q for the second time", id)
		}
		a.batchIDs[id] = true
		a.sizes = append(a.sizes, len(batch))
		subjects := map[string]bool{}
		for i, s := range batch {
			if s.head.Get(headerBatchID) != id || s.head.Get(headerBatchSequence) != strconv.Itoa(i+1) || (s.head.Get(headerBatchCommit) == "1") != (i == len(batch)-1) {
				a.t.Errorf("message %d of batch %s of %d has headers %v", i+1, id, len(batch), s.head)
			}
			if subjects[s.subject] {
				a.t.Errorf("%s is twice in a batch", s.subject)
			}
			subjects[s.subject] = true
		}
	}
	a.requests = append(a.requests, request{batch, on})
	return nil
}

// answer acts on the oldest request and answers it.
func (a *away) answer() { a.end(a.act) }

// end ends the oldest request with what how makes of it.
func (a *away) end(how func([]sent) (string, error)) {
	a.t.Helper()
	if len(a.requests) == 0 {
		a.t.Fatal("nothing is under way")
	}
	r := a.requests[0]
	a.requests = a.requests[1:]
	data, err := how(r.batch)
	if err != nil {
		r.on(nil, err)
		return
	}
	r.on(&nats.Msg{Data: []byte(data)}, nil)
}

// rest answers until nothing is under way.
func (a *away) rest() {
	for len(a.requests) > 0 {
		a.answer()
	}
}

func refusal(code int) (string, error) {
	return fmt.Sprintf(`{"error":{"code":400,"err_code":%d,"description":"no"},"stream":"S","seq":0}`, code), nil
}

func (a *away) act(batch []sent) (string, error) {
	batched := batch[0].head.Get(headerBatchID) != ""
	last := batch[len(batch)-1].subject
	if batched && !a.unknown {
		switch {
		case a.denied[last]:
			return "", ErrDenied
		case a.allowed == 0:
			return refusal(codeBatchesOff)
		case len(batch) > a.allowed:
			return refusal(codeBatchTooLarge)
		}
		for _, s := range batch {
			if a.denied[s.subject] {
				return refusal(10176) // one never arrived
			}
			if a.stale[s.subject] {
				return refusal(10071)
			}
		}
	}
	var answer string
	var err error
	for _, s := range batch {
		switch {
		case a.denied[s.subject]:
			answer, err = "", ErrDenied
		case a.stale[s.subject]:
			answer, err = refusal(10071)
		default:
			a.seq++
			a.stored[s.subject]++
			answer = fmt.Sprintf(`{"stream":"S","seq":%d}`, a.seq)
		}
	}
	if batched && !a.unknown {
		answer = fmt.Sprintf(`{"stream":"S","seq":%d,"batch":"b","count":%d}`, a.seq, len(batch))
	}
	return answer, err
}

// outcome is what one write was told.
type outcome struct {
	subject string
	times   int
	ack     PubAck
	err     error
}

func (o *outcome) code() int {
	if api := (*APIError)(nil); errors.As(o.err, &api) {
		return api.Code
	}
	return 0
}

// trial is a group in front of a server that is played.
type trial struct {
	*away
	g        *Group
	outcomes []*outcome
	off      int // how often the group told that it goes one by one
}

// newTrial makes a group whose batches begin with four writes.
func newTrial(t *testing.T, change func(*GroupConfig)) *trial {
	t.Helper()
	tr := &trial{away: newAway(t)}
	cfg := GroupConfig{Alone: 4, Messages: 64, One: func(err *APIError) bool { return err.Code == 10071 }, Off: func(error) { tr.off++ }}
	if change != nil {
		change(&cfg)
	}
	tr.g = newGroup(tr.away, cfg)
	return tr
}

func (tr *trial) add(subject string, size int) *outcome {
	tr.t.Helper()
	o := &outcome{subject: subject}
	number := strconv.Itoa(len(tr.outcomes))
	data := bytes.Repeat([]byte(number+" "), size)[:size]
	m := &nats.Msg{Subject: subject, Header: nats.Header{headerWrite: {number}}, Data: bytes.Clone(data)}
	tr.writes[number] = data
	used := func() { // again, by another write
		delete(tr.writes, number)
		clear(m.Header)
		copy(m.Data, "another")
		m.Subject = "another"
	}
	err := tr.g.Add(m, func(ack PubAck, err error) {
		used()
		o.times++
		o.ack, o.err = ack, err
	})
	if err != nil {
		used()
		o.times, o.err = 1, err
	}
	tr.outcomes = append(tr.outcomes, o)
	return o
}

// addMany adds writes to s0, s1 and so on.
func (tr *trial) addMany(from, to int) {
	tr.t.Helper()
	for i := from; i < to; i++ {
		tr.add("s"+strconv.Itoa(i), 10)
	}
}

// check lets wrong say what is wrong with an outcome, if anything.
func (tr *trial) check(wrong func(*outcome) string) {
	tr.t.Helper()
	for _, o := range tr.outcomes {
		if o.times != 1 {
			tr.t.Errorf("%s: its end was told %d times, want once", o.subject, o.times)
		}
		if text := wrong(o); text != "" {
			tr.t.Errorf("%s: %s", o.subject, text)
		}
	}
	if len(tr.g.waiting) != 0 || tr.g.alone != 0 || tr.g.batches != 0 {
		tr.t.Errorf("at rest the group has %d waiting, %d alone and %d batches under way", len(tr.g.waiting), tr.g.alone, tr.g.batches)
	}
}

// own says what is wrong unless o was stored once, or refused where its subject is to blame.
func (tr *trial) own(o *outcome) string {
	switch {
	case tr.stale[o.subject]:
		if o.code() != 10071 || tr.stored[o.subject] != 0 {
			return fmt.Sprintf("got %v, stored %d times; want the refusal of a stale write", o.err, tr.stored[o.subject])
		}
	case tr.denied[o.subject]:
		if !errors.Is(o.err, ErrDenied) || tr.stored[o.subject] != 0 {
			return fmt.Sprintf("got %v, stored %d times; want ErrDenied", o.err, tr.stored[o.subject])
		}
	case o.err != nil || o.ack.Sequence == 0 || tr.stored[o.subject] != 1:
		return fmt.Sprintf("got %+v, %v, stored %d times; want it stored once", o.ack, o.err, tr.stored[o.subject])
	}
	return ""
}

func TestGroup_AFewGoAtOnceAndByThemselves(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, nil)
	tr.addMany(0, 4)
	if got := len(tr.requests); got != 4 {
		t.Errorf("of 4 writes %d are under way, want all", got)
	}
	tr.addMany(4, 7)
	if got := len(tr.requests); got != 4 {
		t.Errorf("with 3 more %d are under way, want 4", got)
	}
	tr.answer()
	if got := len(tr.requests); got != 4 {
		t.Errorf("after an answer %d are under way, want 4 again: too few wait for a batch", got)
	}
	tr.rest()
	if len(tr.sizes) != 0 {
		t.Errorf("got batches of %v, want none", tr.sizes)
	}
	tr.check(tr.own)
}

func TestGroup_ManyLeaveTogether(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, nil)
	tr.addMany(0, 30)
	tr.answer()
	if fmt.Sprint(tr.sizes) != "[26]" {
		t.Errorf("got batches of %v, want one of what had gathered, 26", tr.sizes)
	}
	tr.addMany(30, 50) // while it is under way
	if got := len(tr.requests); got != 4 {
		t.Errorf("%d requests are under way, want 3 single ones and a batch", got)
	}
	tr.rest()
	if fmt.Sprint(tr.sizes) != "[26 20]" {
		t.Errorf("got batches of %v, want 26 and 20", tr.sizes)
	}
	tr.check(tr.own)
	for i, o := range tr.outcomes {
		if got, want := o.ack.Sequence, uint64(i+1); i < 1 && got != want || i >= 4 && got != want {
			t.Errorf("%s: got sequence %d, want %d", o.subject, got, want)
		}
	}
}

func TestGroup_AStaleWriteSpoilsNoOther(t *testing.T) {
	t.Parallel()
	for _, at := range []int{4, 5, 31, 32, 66, 67} {
		t.Run(fmt.Sprintf("at %d", at), func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, nil)
			tr.stale["s"+strconv.Itoa(at)] = true
			tr.addMany(0, 68)
			tr.rest()
			tr.check(tr.own)
			if len(tr.sizes) < 2 {
				t.Errorf("got batches of %v: nothing was divided", tr.sizes)
			}
		})
	}
}

// TestGroup_EachWriteGetsItsOwnOutcome lets chance decide how many write, which
// are refused, and when answers come.
func TestGroup_EachWriteGetsItsOwnOutcome(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // faults, not secrets
	for range 300 {
		tr := newTrial(t, func(c *GroupConfig) { c.Batches, c.Messages = 1+random.IntN(3), 4+random.IntN(100) })
		tr.allowed = []int{0, 3, 10, 1000, 1000, 1000}[random.IntN(6)]
		share := []float64{0, 0.01, 0.1, 1}
		stale, denied := share[random.IntN(4)], share[random.IntN(3)]
		for i := range random.IntN(300) {
			subject := "s" + strconv.Itoa(i)
			switch x := random.Float64(); {
			case x < stale:
				tr.stale[subject] = true
			case x < stale+denied:
				tr.denied[subject] = true
			}
			tr.add(subject, 10)
			for len(tr.requests) > 0 && random.IntN(20) == 0 {
				tr.answer()
			}
		}
		tr.rest()
		tr.check(tr.own)
		if t.Failed() {
			return
		}
	}
}

func TestGroup_ManyStaleWritesAreNotSoughtForLong(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, func(c *GroupConfig) { c.Messages = 1000 })
	tr.addMany(0, 4)
	for i := 4; i < 1004; i++ {
		tr.stale["s"+strconv.Itoa(i)] = true
		tr.add("s"+strconv.Itoa(i), 10)
	}
	tr.rest()
	tr.check(tr.own)
	if got := len(tr.sizes); got > maxRefusals {
		t.Errorf("got %d batches (%v), want at most %d", got, tr.sizes, maxRefusals)
	}
}

func TestGroup_GoesOneByOneWhereBatchesAreOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(t, nil)
		tr.allowed = 0
		tr.addMany(0, 100)
		tr.rest()
		tr.addMany(100, 200)
		if got := len(tr.requests); got != 100 {
			t.Errorf("of 100 writes %d are under way, want all: there is nothing to wait for", got)
		}
		tr.rest()
		if len(tr.sizes) != 1 || tr.off != 1 {
			t.Errorf("got batches of %v, told %d times; want one batch, told once", tr.sizes, tr.off)
		}
		time.Sleep(retryBatches)
		tr.addMany(200, 300)
		tr.rest()
		if len(tr.sizes) != 2 || tr.off != 1 {
			t.Errorf("a minute later: got batches of %v, told %d times; want one more, and silence", tr.sizes, tr.off)
		}
		tr.allowed = 1000
		time.Sleep(retryBatches)
		tr.addMany(300, 400)
		tr.rest()
		if len(tr.sizes) < 4 {
			t.Errorf("switched on again: got batches of %v, want them to go on", tr.sizes)
		}
		tr.check(tr.own)
	})
}

func TestGroup_MakesSmallerBatchesWhereTheServerWantsThem(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, nil)
	tr.allowed = 20
	tr.addMany(0, 300)
	tr.rest()
	tr.check(tr.own)
	large := 0
	for _, n := range tr.sizes {
		if n > tr.allowed {
			large++
		}
	}
	if large != 3 { // 64 and its two halves
		t.Errorf("got batches of %v, want three that were too large", tr.sizes)
	}
}

func TestGroup_AnUnknownOutcomeIsThatOfAllInTheBatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		how  func(tr *trial) func([]sent) (string, error)
		want error
	}{
		{"a timeout of what is stored", func(tr *trial) func([]sent) (string, error) {
			return func(batch []sent) (string, error) { _, _ = tr.act(batch); return "", ErrTimeout }
		}, ErrIndeterminate},
		{"a timeout of what is not stored", func(*trial) func([]sent) (string, error) {
			return func([]sent) (string, error) { return "", ErrTimeout }
		}, ErrIndeterminate},
		{"a lost connection", func(*trial) func([]sent) (string, error) {
			return func([]sent) (string, error) { return "", ErrDisconnected }
		}, ErrIndeterminate},
		{"an answer in another tongue", func(*trial) func([]sent) (string, error) {
			return func([]sent) (string, error) { return "what?", nil }
		}, ErrIndeterminate},
		{"an answer that confirms another number", func(*trial) func([]sent) (string, error) {
			return func([]sent) (string, error) { return `{"stream":"S","seq":70,"batch":"b","count":3}`, nil }
		}, ErrIndeterminate},
		{"nobody there", func(*trial) func([]sent) (string, error) {
			return func([]sent) (string, error) { return "", ErrNoResponders }
		}, ErrNoResponders},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tr := newTrial(t, nil)
			tr.addMany(0, 20)
			for len(tr.requests[0].batch) == 1 {
				tr.answer()
			}
			tr.end(c.how(tr))
			tr.addMany(20, 40)
			tr.rest()
			tr.check(func(o *outcome) string {
				if n, _ := strconv.Atoi(o.subject[1:]); n < 4 || n >= 20 {
					return tr.own(o)
				}
				if !errors.Is(o.err, c.want) {
					return fmt.Sprintf("got %v, want %v", o.err, c.want)
				}
				return ""
			})
		})
	}
}

func TestGroup_AServerThatKnowsNoBatches(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, nil)
	tr.unknown = true
	tr.addMany(0, 40)
	tr.rest()
	tr.addMany(40, 80)
	tr.rest()
	if len(tr.sizes) != 1 || tr.off != 1 {
		t.Errorf("got batches of %v, told %d times; want one batch, told once", tr.sizes, tr.off)
	}
	tr.check(func(o *outcome) string {
		if n, _ := strconv.Atoi(o.subject[1:]); n < 4 || n >= 40 {
			return tr.own(o)
		}
		if !errors.Is(o.err, ErrIndeterminate) {
			return fmt.Sprintf("got %v, want ErrIndeterminate: its answer said nothing about the others", o.err)
		}
		return ""
	})
}

func TestGroup_WhatCannotBeSentSpoilsNoOther(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"s7", "s39"} { // in the middle; the one that commits
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			bad := errors.New("maximum payload exceeded")
			tr := newTrial(t, nil)
			tr.posting[at] = bad
			tr.addMany(0, 40)
			tr.rest()
			tr.check(func(o *outcome) string {
				if o.subject != at {
					return tr.own(o)
				}
				if !errors.Is(o.err, bad) {
					return fmt.Sprintf("got %v, want %v", o.err, bad)
				}
				return ""
			})
		})
	}
}

func TestGroup_TwoWritesOfOneKeyAreNeverInOneBatch(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, nil)
	tr.addMany(0, 4)
	for range 5 {
		tr.add("same", 10)
		tr.addMany(4, 10)
	}
	var before uint64
	tr.rest() // the server checks each batch
	tr.check(func(o *outcome) string {
		if o.err != nil {
			return o.err.Error()
		}
		return ""
	})
	for _, o := range tr.outcomes {
		if o.subject != "same" {
			continue
		}
		if o.ack.Sequence <= before {
			t.Errorf("a later write has sequence %d, one before it has %d", o.ack.Sequence, before)
		}
		before = o.ack.Sequence
	}
	if tr.stored["same"] != 5 {
		t.Errorf("stored %d times, want 5", tr.stored["same"])
	}
}

func TestGroup_BoundsItsBatches(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, func(c *GroupConfig) { c.Messages, c.Bytes = 10, 10_000 })
	tr.addMany(0, 40)
	for i := range 20 {
		tr.add("large"+strconv.Itoa(i), 1500)
	}
	tr.add("huge", 20_000)
	for len(tr.requests) > 0 {
		batch, size := tr.requests[0].batch, 0
		for _, s := range batch {
			size += len(s.data)
		}
		if len(batch) > 10 || size > 10_000 && len(batch) > 1 {
			t.Errorf("a batch has %d messages of %d bytes, want at most 10 of 10000", len(batch), size)
		}
		tr.answer()
	}
	tr.check(tr.own)
}

func TestGroup_EndsWithItsPipe(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, func(c *GroupConfig) { c.Messages = 10 })
	tr.addMany(0, 100)
	tr.answer() // three single writes and a batch are under way, the others wait
	tr.closed = true
	for len(tr.requests) > 0 {
		tr.end(func([]sent) (string, error) { return "", ErrDisconnected })
	}
	if o := tr.add("late", 1); !errors.Is(o.err, ErrClosed) {
		t.Errorf("after the end: got %v, want ErrClosed", o.err)
	}
	tr.check(func(o *outcome) string {
		if o.subject != "s0" && !errors.Is(o.err, ErrDisconnected) && !errors.Is(o.err, ErrClosed) {
			return fmt.Sprintf("got %v, want ErrDisconnected or ErrClosed", o.err)
		}
		return ""
	})
}
