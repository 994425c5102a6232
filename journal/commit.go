package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// Commit writes d as the next decision of a run, if the run still has
// expected decisions (0 for a new run). Events and commands are stored in one
// write, together or not at all; a relay submits the commands from then on.
//
// Repeating a Commit with the same commit id at the same place is absorbed.
//
// Errors: ErrConflict if somebody else has decided meanwhile; ErrInvalid and
// ErrTooLarge if d breaks a rule; ErrFull, ErrUnavailable, ErrDenied or
// ErrNoJournal if the server refused. After each of these nothing was written.
// ErrUnconfirmed if the server's word stayed out for as long as ctx, or
// Options.Confirm, allowed: then repeat it with the commit id returned, or load
// the run and see.
func (j *Journal) Commit(ctx context.Context, run string, expected uint64, d Decision) (Committed, error) {
	token, err := tokenOf(run)
	if err != nil {
		return Committed{Run: run, ID: d.ID}, fmt.Errorf("journal: commit: %w", err)
	}
	e, err := j.entryOf(run, expected+1, d)
	if err != nil {
		return Committed{Run: run, ID: e.ID}, fmt.Errorf("journal: commit: %w", err)
	}
	return j.commit(ctx, token, e, d.ID != "")
}

// commit writes an entry. Named says that its commit id is the caller's.
func (j *Journal) commit(ctx context.Context, token command.Token, e *Entry, named bool) (Committed, error) {
	m, err := e.message(j.subject(token))
	if err != nil {
		return e.committed(false), err
	}
	// The server counts headers too; the one that is still to come has 20 digits at most.
	if n := m.Size() + len(jetstream.ExpectedLastSubjSeqHeader) + 24; n > j.Limit() {
		return e.committed(false), fmt.Errorf("journal: commit decision %d of run %q: %w: %d bytes with headers, max_payload of the server is %d; split it, or store bodies elsewhere and keep references", e.Seq, e.Run, ErrTooLarge, n, j.Limit())
	}
	ctx, cancel := pipeline.Within(ctx, j.confirm)
	defer cancel()
	c := &commit{j: j, token: token, entry: e, msg: m, named: named}
	return c.run(ctx)
}

// commit is one Commit under way.
type commit struct {
	j     *Journal
	token command.Token
	entry *Entry
	msg   *nats.Msg
	// named says that the commit id is the caller's, so that an earlier Commit may have stored it.
	named bool
	// sent says that a write is or was under way whose outcome is not known. It
	// may still arrive, so only a message in its place proves that it did not.
	sent bool
	at   uint64 // stream sequence of the decision before, where known
}

// run writes and, whenever it does not know what happened, reads:
//
//	where does the run end?  at expected   -> write over exactly that
//	                         further       -> who is at expected+1? we: done. another: conflict
//	                         not so far    -> conflict
//	the write                stored        -> done
//	                         refused       -> read again: somebody was faster, or an earlier try of ours
//	                         no answer     -> read again, write again over the same: only one can be stored
func (c *commit) run(ctx context.Context) (Committed, error) {
	expected := c.entry.Seq - 1
	h, known := c.j.remembered(c.token)
	known = known && h.seq == expected
	pause := firstPause
	if ctx.Err() != nil {
		return c.entry.committed(false), c.givenUp(context.Cause(ctx))
	}
	var why error // it has not worked yet
	for {
		var err error
		fresh := !known
		if !known {
			var settled *Entry
			if h, settled, err = c.look(ctx); settled != nil {
				return settled.committed(!c.sent), nil
			}
		}
		known = false
		if err == nil {
			err = c.write(ctx, h)
			if err == nil {
				c.j.remember(c.token, head{seq: c.entry.Seq, at: c.entry.StreamSeq})
				return c.entry.committed(false), nil
			}
			if errors.Is(err, ErrConflict) && !fresh {
				continue // what was remembered is old: look at once
			}
		}
		if why == nil || ctx.Err() == nil { // that ctx has ended says less
			why = err
		}
		switch {
		case errors.Is(err, errMoved):
			c.j.forget(c.token)
			return c.entry.committed(false), err
		case final(err) && !c.sent:
			return c.entry.committed(false), c.wrap(err)
		case pipeline.Sleep(ctx, pause) != nil:
			return c.entry.committed(false), c.givenUp(why)
		}
		pause = min(2*pause, lastPause)
	}
}

// givenUp is the error of a commit that ran out of time.
func (c *commit) givenUp(why error) error {
	switch {
	case c.sent:
		return fmt.Errorf("%w; repeat it with the commit id %q: %w", c.wrap(ErrUnconfirmed), c.entry.ID, why)
	case errors.Is(why, ErrFull):
		return fmt.Errorf("%w; nothing was written", c.wrap(why))
	}
	return fmt.Errorf("%w; nothing was written: %w", c.wrap(ErrUnavailable), why)
}

func (c *commit) wrap(err error) error {
	return fmt.Errorf("journal: commit decision %d of run %q: %w", c.entry.Seq, c.entry.Run, err)
}

// errMoved is ErrConflict as found by looking, not by being refused.
var errMoved = fmt.Errorf("%w", ErrConflict)

// look asks the leader where the run ends. If our decision is there already it is returned.
func (c *commit) look(ctx context.Context) (head, *Entry, error) {
	last, err := c.j.last(ctx, c.token)
	if err != nil {
		return head{}, nil, err
	}
	var h head
	if last != nil {
		h = head{seq: last.Seq, at: last.StreamSeq}
	}
	expected := c.entry.Seq - 1
	switch {
	case h.seq == expected:
		c.at = h.at
		return h, nil, nil
	case h.seq < expected:
		return h, nil, fmt.Errorf("%w: it has %s, and not the expected %d; load it again", c.wrap(errMoved), plural.Count(h.seq, "decision"), expected)
	}
	moved := fmt.Errorf("%w: it has %s, and not the expected %d; load it again and decide anew", c.wrap(errMoved), plural.Count(h.seq, "decision"), expected)
	if !c.named && !c.sent {
		return h, nil, moved // nobody else can have used this commit id
	}
	there := last
	if h.seq > c.entry.Seq {
		if there, err = c.j.find(ctx, c.token, c.entry.Seq, c.at+1, h.at); err != nil {
			return h, nil, err
		}
	}
	switch {
	case there == nil || there.ID != c.entry.ID:
		return h, nil, moved
	case !sameContent(there, c.entry):
		return h, nil, fmt.Errorf("%w: the commit id %q stands for another decision there; give each decision an id of its own", moved, c.entry.ID)
	}
	return h, there, nil
}

// write sends the decision over the head that was seen.
func (c *commit) write(ctx context.Context, h head) error {
	c.at = h.at
	c.msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(h.at, 10)}
	ack, err := pipeline.AwaitWrite(ctx, func(done func(pipeline.PubAck, error)) error { return c.j.pipe.Publish(c.msg, done) })
	if err == nil {
		c.entry.StreamSeq = ack.Sequence
		return nil
	}
	if errors.Is(err, errIndeterminate) {
		c.sent = true
	}
	return classify(err)
}

// find returns decision seq of a run, which lies between two sequences of the
// stream; nil if it is not there.
func (j *Journal) find(ctx context.Context, token command.Token, seq, from, upTo uint64) (*Entry, error) {
	var found *Entry
	err := j.walk(ctx, j.subject(token), from, upTo, func(s stored) error {
		e, err := s.entry()
		if err != nil {
			return err
		}
		if e.Seq == seq {
			found = e
		}
		if e.Seq >= seq {
			return errStop
		}
		return nil
	})
	return found, err
}
