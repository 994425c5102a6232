package desk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Requeue sends a parked command back: its attempts start anew, its progress is
// kept. Of one that was sent back already and is not in the stream, because an
// earlier Requeue was cut off, the publication is made up for.
func (d *Desk) Requeue(ctx context.Context, act Act, id string) (Outcome, error) {
	if err := act.check(); err != nil {
		return Outcome{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	at, e, err := d.known(ctx, id)
	var out Outcome
	if err == nil {
		out, err = at.requeue(ctx, act, e, false)
	}
	if err != nil {
		return out, fmt.Errorf("desk: requeue %q: %w", id, err)
	}
	return out, nil
}

// requeue goes on from what is stored. Mine says that this act has written it.
func (d *Desk) requeue(ctx context.Context, act Act, e kvstate.Entry, mine bool) (Outcome, error) {
	for range rejudge {
		if e.Record == nil {
			return Outcome{}, errUnknown()
		}
		if e.Record.State == kvstate.Requeued {
			s, err := d.sending(ctx, e)
			if err != nil {
				return Outcome{}, err
			}
			if mine {
				return d.send(ctx, s, true, d.try(ctx, s))
			}
			return d.send(ctx, s, false, stream.ErrRepeated) // it ought to be there: look
		}
		next, err := sentBack(act, e)
		if err != nil {
			return Outcome{}, err
		}
		now, wrote, err := d.write(ctx, e.Key, next)
		if errors.Is(err, kvstate.ErrTooLarge) {
			now, wrote, err = d.writeBeside(ctx, e.Key, next)
		}
		if err != nil {
			return Outcome{}, err
		}
		e, mine = now, wrote
	}
	return Outcome{}, fmt.Errorf("%w: others change its record all the time; try again", ErrRefused)
}

// sentBack is the record of a parked command that is to run again.
func sentBack(act Act, e kvstate.Entry) (*kvstate.Record, error) {
	r := e.Record
	if kvstate.Aside(e.Key) {
		return nil, fmt.Errorf("%w: %s cannot run as it is: %s; discard it, or submit it under another id", ErrRefused, e.Key, asideWhy(r.Reason))
	}
	next, err := act.advance(e, kvstate.Requeued)
	if err != nil {
		return nil, err
	}
	switch {
	case next.Command == nil:
		return nil, fmt.Errorf("%w: its record does not hold the command; resolve or discard it, and submit it under another id", ErrRefused)
	case !next.Command.NotAfter.IsZero() && time.Now().After(next.Command.NotAfter):
		return nil, fmt.Errorf("%w: it was to start by %s and would only be parked as %s; discard it, or submit it under another id",
			ErrRefused, next.Command.NotAfter.UTC().Format(time.RFC3339), kvstate.ReasonExpired)
	}
	next.Attempt, next.Error, next.Reason, next.NextAt, next.Intent = 0, "", "", time.Time{}, nil
	return next, nil
}

func asideWhy(reason kvstate.Reason) string {
	if reason == kvstate.ReasonConflict {
		return "its id stands for another command"
	}
	return "it does not decode"
}

// writeBeside writes a record that has no room for its payload: that gets an
// entry of its own first.
func (d *Desk) writeBeside(ctx context.Context, key command.Token, next *kvstate.Record) (kvstate.Entry, bool, error) {
	if err := d.put(ctx, kvstate.PayloadKey(key), next.Command.Payload); err != nil {
		return kvstate.Entry{}, false, fmt.Errorf("keep its payload beside the record: %w", err)
	}
	without := *next.Command
	without.Payload = nil
	next.Command = &without
	return d.write(ctx, key, next)
}

// sending is a requeued command on its way into the stream.
type sending struct {
	rec    *kvstate.Record
	env    command.Envelope
	beside uint64 // revision of the entry that holds its payload; 0 if the record does
	ok     stream.Accepted
}

// sending makes the command of a requeued record whole.
func (d *Desk) sending(ctx context.Context, e kvstate.Entry) (*sending, error) {
	s, whole, err := inline(e)
	if err != nil || whole {
		return s, err
	}
	p, err := d.records.Read(ctx, kvstate.PayloadKey(e.Key))
	if err != nil {
		return nil, fmt.Errorf("read its payload: %w", err)
	}
	s.env.Payload, s.beside = p.Raw, p.Revision
	if got := dedupe.Digest(s.env.Kind, p.Raw); got != s.rec.Digest {
		return nil, fmt.Errorf("its payload, under %s, is gone or was altered (digest %s, want %s): resolve or discard it, and submit it under another id", kvstate.PayloadKey(e.Key), got, s.rec.Digest)
	}
	s.env.Digest = s.rec.Digest
	return s, nil
}

// inline makes a command of what the record holds, and tells whether that is
// the whole of it.
func inline(e kvstate.Entry) (s *sending, whole bool, err error) {
	if e.Record.Command == nil {
		return nil, false, errors.New("its record does not hold the command; cancel it, and submit it under another id")
	}
	s = &sending{rec: e.Record}
	if s.env, err = dedupe.Identify(*e.Record.Command); err != nil {
		return nil, false, fmt.Errorf("its record holds what is no command: %w", err)
	}
	return s, s.env.Digest == e.Record.Digest, nil
}

// try publishes once and waits for the answer.
func (d *Desk) try(ctx context.Context, s *sending) error {
	ok, err := pipeline.AwaitWrite(ctx, func(done func(stream.Accepted, error)) error { return d.commands.Republish(s.env, done) })
	if err == nil {
		s.ok = ok
	}
	return err
}

// errForeign means that what is in the stream under this id is another command.
var errForeign = errors.New("another command with this id is in the stream, which the worker that gets it parks as a conflict")

// send sees to it that the command of a requeued record is in the stream. Err
// is what came of the last try to publish it.
func (d *Desk) send(ctx context.Context, s *sending, mine bool, err error) (Outcome, error) {
	foreign := 0
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if err == nil {
			d.forget(ctx, s)
			return Outcome{Sequence: s.ok.Sequence}, nil
		}
		if errors.Is(err, stream.ErrRepeated) {
			there, findErr := d.occupied(ctx, s)
			if there > 0 {
				d.forget(ctx, s)
				return Outcome{Already: !mine, Sequence: there}, nil
			}
			if findErr == nil { // free
				err = d.try(ctx, s)
				continue
			}
			if err = findErr; errors.Is(err, errForeign) {
				foreign++
			}
		}
		if foreign > 5 || !errors.Is(err, errForeign) && !passing(err) || pipeline.Sleep(ctx, pause) != nil {
			return Outcome{}, fmt.Errorf("it is requeued on record, but not yet in the stream: %w; requeue it once more", err)
		}
		err = d.try(ctx, s)
	}
}

// occupied returns the sequence under which the command is in the stream. 0
// without an error means that its subject is free.
func (d *Desk) occupied(ctx context.Context, s *sending) (uint64, error) {
	there, err := d.commands.Occupant(ctx, s.env)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case s.rec.Accounts(there.Seq):
		// The delivery that was parked, whose ack is under way or got lost. It
		// may still come, and would take out a command that must run. So this
		// sequence, for which the record speaks, makes room for a new one; unless
		// it has come again meanwhile, and a worker runs it as the one sent back.
		now, err := d.records.Read(ctx, s.env.Token)
		switch {
		case err != nil:
			return 0, err
		case now.Record != nil && now.Record.State != kvstate.Requeued:
			return there.Seq, nil
		}
		return 0, d.commands.Remove(ctx, there.Seq)
	}
	filed := []command.Token{kvstate.AbsorbedKey(there.Seq)}
	if !same(there, s.env) {
		filed = []command.Token{kvstate.ConflictKey(there.Seq), kvstate.MalformedKey(there.Seq)}
	}
	for _, key := range filed {
		switch e, err := d.records.Read(ctx, key); {
		case err != nil:
			return 0, err
		case e.Raw != nil: // the ack, or the sweep, may be under way, and makes room as well
			return 0, d.commands.Remove(ctx, there.Seq)
		}
	}
	if !same(there, s.env) {
		return 0, fmt.Errorf("%w (sequence %d)", errForeign, there.Seq)
	}
	return there.Seq, nil
}

// absorbed reports whether a worker has filed a copy as absorbed, while the
// command was parked, so that it does not carry the command. Whoever files one
// after this look sees that the command was sent back, and lets the copy be.
func (d *Desk) absorbed(ctx context.Context, seq uint64) (bool, error) {
	e, err := d.records.Read(ctx, kvstate.AbsorbedKey(seq))
	return e.Raw != nil, err
}

// same reports whether what is in the stream is this command.
func same(there stream.Stored, env command.Envelope) bool {
	e, err := dedupe.Recognise(there.Queue, there.Kind, there.Token, there.Header, there.Payload)
	return err == nil && e.Digest == env.Digest
}

// forget removes the payload that lay beside a record, now that the stream has
// it. If that fails it is left lying, which costs room and nothing else; one
// that was stored anew since is not touched.
func (d *Desk) forget(ctx context.Context, s *sending) {
	if s.beside > 0 {
		_ = d.records.Remove(ctx, kvstate.PayloadKey(s.env.Token), s.beside)
	}
}
