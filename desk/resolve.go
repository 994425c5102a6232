package desk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Result is the outcome that a person states.
type Result struct {
	Body        []byte
	ContentType string
}

// Resolve makes the stated result the receipt of a parked command. The receipt
// names who resolved it. Stating the same result again changes nothing; another
// one is refused, since receipts never change.
func (d *Desk) Resolve(ctx context.Context, act Act, id string, result Result) (Outcome, error) {
	out, err := d.settle(ctx, act, id, func(e kvstate.Entry) (*kvstate.Record, error) {
		if kvstate.Aside(e.Key) {
			return nil, fmt.Errorf("%w: %s is no command of its own whose outcome anybody waits for: %s; discard it", ErrRefused, e.Key, asideWhy(e.Record.Reason))
		}
		r := e.Record
		if r.State == kvstate.Completed && r.ResolvedBy != "" && bytes.Equal(r.Result, result.Body) && r.ContentType == result.ContentType {
			return nil, nil
		}
		if r.State != kvstate.Parked {
			return nil, refusal(e, kvstate.Completed)
		}
		next, err := act.advance(e, kvstate.Completed)
		if err != nil {
			return nil, err
		}
		next.Result, next.ContentType, next.ResolvedBy = result.Body, result.ContentType, act.By
		next.Reason, next.NextAt, next.Checkpoint, next.Intent = "", time.Time{}, nil, nil
		return next, nil
	})
	if errors.Is(err, kvstate.ErrTooLarge) {
		err = fmt.Errorf("the result of %d bytes does not fit into a receipt, which holds %d in all; store it elsewhere and give a reference: %w", len(result.Body), d.records.Limit(), err)
	}
	if err != nil {
		return out, fmt.Errorf("desk: resolve %q: %w", id, err)
	}
	return out, nil
}

// Discard gives a parked command up. Id may also be the key of what was parked
// aside: a message that did not decode, or a copy whose id stands for another command.
func (d *Desk) Discard(ctx context.Context, act Act, id string) (Outcome, error) {
	out, err := d.settle(ctx, act, id, func(e kvstate.Entry) (*kvstate.Record, error) {
		return givenUp(act, e)
	})
	if err != nil {
		return out, fmt.Errorf("desk: discard %q: %w", id, err)
	}
	return out, nil
}

// givenUp is the record of a parked command that is given up; nil if it is already.
func givenUp(act Act, e kvstate.Entry) (*kvstate.Record, error) {
	if e.Record.State == kvstate.Discarded {
		return nil, nil
	}
	next, err := act.advance(e, kvstate.Discarded)
	if err != nil {
		return nil, err
	}
	next.NextAt, next.Checkpoint = time.Time{}, nil
	return next, nil
}

// settle gives a parked command its end: what decide makes of its record. Nil
// means that it has that end already.
func (d *Desk) settle(ctx context.Context, act Act, id string, decide func(kvstate.Entry) (*kvstate.Record, error)) (Outcome, error) {
	if err := act.check(); err != nil {
		return Outcome{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	at, e, err := d.known(ctx, id)
	if err != nil {
		return Outcome{}, err
	}
	return at.end(ctx, e, decide)
}

func (d *Desk) end(ctx context.Context, e kvstate.Entry, decide func(kvstate.Entry) (*kvstate.Record, error)) (Outcome, error) {
	for range rejudge {
		if e.Record == nil {
			return Outcome{}, errUnknown()
		}
		next, err := decide(e)
		if err != nil {
			return Outcome{}, err
		}
		if next == nil {
			d.clear(ctx, e.Key) // an earlier act may have been cut off before that
			return Outcome{Already: true}, nil
		}
		now, wrote, err := d.write(ctx, e.Key, next)
		if errors.Is(err, kvstate.ErrTooLarge) && next.State == kvstate.Discarded && next.Command != nil {
			next.Command = nil // what is given up need not be kept
			now, wrote, err = d.write(ctx, e.Key, next)
		}
		if err != nil {
			return Outcome{}, err
		}
		if wrote {
			if beside(e.Record) {
				d.clear(ctx, e.Key)
			}
			return Outcome{}, nil
		}
		e = now
	}
	return Outcome{}, fmt.Errorf("%w: others change its record all the time; try again", ErrRefused)
}

// beside reports whether a command's payload does not lie in its record.
func beside(r *kvstate.Record) bool {
	return r.Command != nil && dedupe.Digest(r.Command.Kind, r.Command.Payload) != r.Digest
}

// clear removes the payload that lies beside a record. If that fails it is left
// lying, which costs room and nothing else.
func (d *Desk) clear(ctx context.Context, key command.Token) {
	if e, err := d.records.Read(ctx, kvstate.PayloadKey(key)); err == nil && e.Raw != nil {
		_ = d.records.Remove(ctx, e.Key, e.Revision)
	}
}
