package pipeline

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// The headers of an atomic batch. They are stored with its messages.
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// Codes of the batch protocol itself. What other refusals mean is for
// GroupConfig.One to say.
const (
	codeBatchesOff    = 10174 // the stream does not allow atomic batches
	codeBatchTooLarge = 10199 // more messages than the server allows
)

// maxRefusals is how many refused batches a flight has before what is left of
// it goes one by one. To find one culprit among 1,000 takes six; with many of
// them, as when a relay repeats what it had sent, dividing on would cost more
// than it saves.
const maxRefusals = 8

// ordinals are the values of headerBatchSequence, as many as a server allows.
var ordinals = func() (all [1000][]string) {
	for i := range all {
		all[i] = []string{strconv.Itoa(i + 1)}
	}
	return all
}()

var commits = []string{"1"}

// flight is a batch under way, and then what it was divided into.
type flight struct {
	g       *Group
	parts   [][]write // to be sent, one after the other
	refused int
}

// next sends the next part, or ends the flight.
func (f *flight) next() {
	for len(f.parts) > 0 {
		part := f.parts[0]
		f.parts = f.parts[1:]
		if len(part) >= f.g.cfg.Alone && f.refused < maxRefusals {
			if f.send(part) == nil {
				return
			}
		}
		// Too few to pay for a batch; or it was not committed, perhaps because of one of them.
		f.g.sendEach(part)
	}
	f.g.leave(1, 0)
}

// send sends a part as one batch. An error means that it was not committed.
func (f *flight) send(part []write) error {
	f.g.mu.Lock()
	f.g.count++
	id := f.g.id + strconv.FormatUint(f.g.count, 36)
	f.g.mu.Unlock()
	ids := []string{id}
	last := len(part) - 1
	for i, w := range part {
		w.m.Reply = ""
		w.m.Header[headerBatchID] = ids
		w.m.Header[headerBatchSequence] = ordinals[i]
		if i < last {
			delete(w.m.Header, headerBatchCommit)
			if err := f.g.to.Post(w.m); err != nil {
				return err
			}
		}
	}
	w := part[last]
	w.m.Header[headerBatchCommit] = commits
	return f.g.to.Lend(w.m, func(reply *nats.Msg, err error) { f.answered(part, reply, err) })
}

// unnumber makes a message of a batch an ordinary one again.
func unnumber(m *nats.Msg) {
	delete(m.Header, headerBatchID)
	delete(m.Header, headerBatchSequence)
	delete(m.Header, headerBatchCommit)
}

// answered gives every write of a part its outcome, or sends it again if it was refused.
func (f *flight) answered(part []write, reply *nats.Msg, err error) {
	ack, err := readAck(reply, err)
	n := uint64(len(part))
	api := (*APIError)(nil)
	switch {
	case errors.As(err, &api):
		f.divide(part, api)
		f.next()
		return
	case errors.Is(err, ErrDenied): // one subject was, not all of them
		f.g.sendEach(part)
		f.next()
		return
	case err == nil && (ack.Count != n || ack.Sequence < n):
		// A server that knows no batches stores their messages one by one.
		err = fmt.Errorf("%w, %w: %d of a batch of %d confirmed", ErrGarbled, ErrIndeterminate, ack.Count, n)
		f.g.turnOff(err)
	case err == nil:
		f.g.stored()
	}
	f.next() // the server need not wait for what follows
	for i, w := range part {
		if err != nil {
			w.done(PubAck{}, err)
			continue
		}
		w.done(PubAck{Sequence: ack.Sequence - n + 1 + uint64(i)}, nil)
	}
}

// divide says how the writes of a refused batch go on. Nothing of it is stored:
// the server checks all of it before it stores any. Should its disk fail under
// the last one, the others meet themselves, as after any lost answer.
func (f *flight) divide(part []write, why *APIError) {
	f.refused++
	half := len(part) / 2
	switch {
	case why.Code == codeBatchesOff:
		f.refused = maxRefusals
		f.g.turnOff(why)
	case why.Code == codeBatchTooLarge:
		f.g.shrink(half)
		f.parts = append(f.parts, part[:half], part[half:])
		return
	case f.g.cfg.One(why):
		f.parts = append(f.parts, part[:half], part[half:])
		return
	}
	f.g.sendEach(part)
}

// turnOff makes single messages of all writes for a while.
func (g *Group) turnOff(why error) {
	g.mu.Lock()
	g.off = time.Now().Add(retryBatches)
	told := g.told
	g.told = true
	g.mu.Unlock()
	if !told {
		g.cfg.Off(why)
	}
}

// stored notes that the stream takes batches.
func (g *Group) stored() {
	g.mu.Lock()
	g.told = false
	g.mu.Unlock()
}

// shrink makes batches smaller. At most half as large as one that was refused is
// still more than a server allows whose limit is below Alone: it gets single messages.
func (g *Group) shrink(most int) {
	g.mu.Lock()
	g.most = max(min(g.most, most), 1)
	g.mu.Unlock()
}
