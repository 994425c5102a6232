package desk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Cancel takes out a command that has not ended. The record comes first: from
// then on no worker can complete it. A running handler's context ends at its
// worker's next heartbeat; what it did until then is done.
//
// If the command cannot be taken out of the stream, [Outcome].Left says why,
// and the worker that gets it takes it out.
func (d *Desk) Cancel(ctx context.Context, act Act, id string) (Outcome, error) {
	if err := act.check(); err != nil {
		return Outcome{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	out, err := d.cancel(ctx, act, id)
	if err != nil {
		return out, fmt.Errorf("desk: cancel %q: %w", id, err)
	}
	return out, nil
}

func (d *Desk) cancel(ctx context.Context, act Act, id string) (Outcome, error) {
	for range rejudge {
		at, e, err := d.known(ctx, id)
		if err != nil {
			return Outcome{}, err
		}
		if e.Record.State == kvstate.Cancelled {
			return Outcome{Already: true, Left: at.takeOut(ctx, e.Record)}, nil
		}
		next, err := at.takenOut(ctx, act, e)
		if err != nil {
			return Outcome{}, err
		}
		if next == nil {
			continue // it has left the stream just now: judge anew
		}
		_, wrote, err := at.write(ctx, e.Key, next)
		if err != nil {
			return Outcome{}, err
		}
		if wrote {
			if beside(e.Record) {
				at.clear(ctx, e.Key)
			}
			return Outcome{Left: at.takeOut(ctx, next)}, nil
		}
	}
	return Outcome{}, fmt.Errorf("%w: others change its record all the time; try again", ErrRefused)
}

// takenOut is the record of a command that is to be taken out. It speaks for
// every copy of the command that is in the stream now. Nil means that one
// without a record is not there any more.
func (d *Desk) takenOut(ctx context.Context, act Act, e kvstate.Entry) (*kvstate.Record, error) {
	r := e.Record
	if r.Open() {
		return nil, refusal(e, kvstate.Cancelled)
	}
	next, err := act.advance(e, kvstate.Cancelled)
	if err != nil {
		return nil, err
	}
	next.NextAt, next.Checkpoint = time.Time{}, nil
	there, err := d.commands.Find(ctx, e.Key)
	if errors.Is(err, stream.ErrNotFound) {
		if r.State == kvstate.None {
			return nil, nil
		}
		return next, nil
	}
	if err != nil {
		return nil, err
	}
	env, err := dedupe.Recognise(there.Queue, there.Kind, there.Token, there.Header, there.Payload)
	switch {
	case r.State != kvstate.None:
		if err == nil && env.Digest == r.Digest {
			next.AddSeq(there.Seq)
		}
		return next, nil
	case err != nil:
		return nil, fmt.Errorf("%w: the message at sequence %d is no command: the worker that gets it parks it as %s, then discard it: %w", ErrRefused, there.Seq, kvstate.ReasonMalformed, err)
	}
	next.Kind, next.Queue, next.Digest = env.Kind, env.Queue, env.Digest
	next.AddSeq(there.Seq)
	return next, nil
}

// takeOut removes from the stream what a cancelled record speaks for.
func (d *Desk) takeOut(ctx context.Context, r *kvstate.Record) error {
	for _, seq := range r.Seqs {
		if err := d.commands.Remove(ctx, seq); err != nil {
			return err
		}
	}
	return nil
}
