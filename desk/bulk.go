package desk

import (
	"context"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Bulk says on which commands to act.
type Bulk struct {
	// IDs to act on, as for a single act. If there are none, Filter selects.
	IDs    []string
	Filter Filter
	// DryRun only finds out what would be done.
	DryRun bool
	// Each hears of every command as it is dealt with, with the counts so far.
	// It is called for one at a time and must not block for long. Optional.
	Each func(Item, Counts)
}

// Item is one command that was dealt with.
type Item struct {
	ID     string
	Key    command.Token // set if its record is not filed under its id; see [Key] for its spelling
	Kind   string
	Reason kvstate.Reason // for which it was parked
	Err    error          // wraps ErrRefused if the act does not fit its state
}

// Counts sum up what came of many acts. Matched is the sum of the others,
// unless it was a dry run, or one that was cut off.
type Counts struct {
	Matched int // selected, or named
	Done    int // requeued, or discarded
	Already int // nothing had to be done
	Refused int // the act does not fit their state
	Failed  int
}

// RequeueMany is Requeue for many commands, pipelined, one shard after the
// other. A filter also selects
// those whose requeueing was cut off before they were in the stream. The error
// is about the whole; what failed for single commands is told to Each and counted.
func (d *Desk) RequeueMany(ctx context.Context, act Act, bulk Bulk) (Counts, error) {
	return d.through(ctx, bulk, func(shard int, at *Desk, bulk Bulk) (Counts, error) {
		b := &batch{d: at, pool: d, shard: shard, act: act, bulk: bulk, window: newWindow(), verb: "requeue"}
		b.judge = func(e kvstate.Entry) (*kvstate.Record, error) { return sentBack(act, e) }
		b.fast = b.fastRequeue
		b.slow = func(ctx context.Context, d *Desk, e kvstate.Entry, mine bool) (Outcome, error) {
			return d.requeue(ctx, act, e, mine)
		}
		return b.run(ctx)
	})
}

// DiscardMany is Discard for many commands, pipelined, one shard after the other.
func (d *Desk) DiscardMany(ctx context.Context, act Act, bulk Bulk) (Counts, error) {
	return d.through(ctx, bulk, func(shard int, at *Desk, bulk Bulk) (Counts, error) {
		b := &batch{d: at, pool: d, shard: shard, act: act, bulk: bulk, window: newWindow(), verb: "discard"}
		b.judge = func(e kvstate.Entry) (*kvstate.Record, error) { return givenUp(act, e) }
		b.fast = b.fastDiscard
		b.slow = func(ctx context.Context, d *Desk, e kvstate.Entry, mine bool) (Outcome, error) {
			if mine {
				if beside(e.Record) {
					d.clear(ctx, e.Key)
				}
				return Outcome{}, nil
			}
			return d.end(ctx, e, b.judge)
		}
		return b.run(ctx)
	})
}
