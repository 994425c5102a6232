package desk

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Sharded returns the desk of a pool that is spread over shards, given the desk
// of each in their order. Of one shard it returns the desk of that.
//
// An act on an id goes to the shard of the id. The key of a record that was
// parked aside is spelled with its shard there, see [Key]. Acts on a queue go to
// every shard, and bulk acts through one shard after the other.
func Sharded(shards ...*Desk) *Desk {
	if len(shards) == 1 {
		return shards[0]
	}
	first := shards[0] // what belongs to the pool as a whole lies there
	return &Desk{commands: first.commands, records: first.records, shards: shards}
}

// Key spells the key of a record that was parked aside, in one of n shards, as
// acts take it: as it is in a pool that is not sharded, and 3:_conflict/17 in
// shard 3 of one that is. Each shard counts its own sequences, so the key alone
// does not say which.
func Key(shard, n int, key command.Token) string {
	if n <= 1 {
		return string(key)
	}
	return strconv.Itoa(shard) + ":" + string(key)
}

// ParseKey reads what Key has spelled for n shards. Not ok means that s is no
// such key, of that many shards.
func ParseKey(s string, n int) (shard int, key command.Token, ok bool) {
	if n > 1 {
		number, rest, found := strings.Cut(s, ":")
		i, err := strconv.Atoi(number)
		if !found || err != nil || i < 0 || i >= n || strconv.Itoa(i) != number {
			return 0, "", false
		}
		shard, s = i, rest
	}
	key = command.Token(s)
	return shard, key, kvstate.Aside(key)
}

// all returns the desks of all shards.
func (d *Desk) all() []*Desk {
	if len(d.shards) == 0 {
		return []*Desk{d}
	}
	return d.shards
}

// home returns the desk of the shard that a token belongs to.
func (d *Desk) home(token command.Token) *Desk {
	if len(d.shards) == 0 {
		return d
	}
	return d.shards[dedupe.Shard(token, len(d.shards))]
}

// place spells the key of an entry of this desk's shard for people.
func (d *Desk) place(shard int, key command.Token) command.Token {
	return command.Token(Key(shard, len(d.shards), key))
}

// unfound is the error for an id that no record and no command in its shard has.
func (d *Desk) unfound(ctx context.Context, id string, token command.Token) error {
	if len(d.shards) == 0 {
		return errUnknown()
	}
	if kvstate.Aside(command.Token(id)) {
		return fmt.Errorf("%w; if it is meant as the key of a record that was parked aside, say the shard, as tallyman parked does: %s",
			errUnknown(), Key(0, len(d.shards), command.Token(id)))
	}
	there, err := d.commands.Find(ctx, token)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return errUnknown()
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: it waits at sequence %d of shard 0, where it was published by hand, until a worker carries it to its own shard; do it again once that is done", ErrRefused, there.Seq)
}

// everywhere acts on a queue in every shard, in their order. Repeating it is safe.
func (d *Desk) everywhere(act func(*Desk) error) error {
	for i, s := range d.all() {
		if err := act(s); err != nil {
			if len(d.shards) > 0 {
				err = fmt.Errorf("shard %d of %d: %w; it is done in those before it, so repeat it", i, len(d.shards), err)
			}
			return fmt.Errorf("desk: %w", err)
		}
	}
	return nil
}

// through runs a bulk act through the shards, one after the other, and sums up.
// Ids that are named are dealt with shard by shard, too.
func (d *Desk) through(ctx context.Context, bulk Bulk, run func(shard int, d *Desk, bulk Bulk) (Counts, error)) (Counts, error) {
	if len(d.shards) == 0 {
		return run(0, d, bulk)
	}
	var sum Counts
	each := bulk.Each
	ids := d.sorted(bulk.IDs)
	for i, s := range d.shards {
		part := bulk
		if part.IDs = ids[i]; len(bulk.IDs) > 0 && len(part.IDs) == 0 {
			continue
		}
		before := sum
		if each != nil {
			part.Each = func(item Item, c Counts) { each(item, before.plus(c)) }
		}
		c, err := run(i, s, part)
		sum = sum.plus(c)
		if err != nil {
			return sum, err
		}
		if ctx.Err() != nil {
			return sum, fmt.Errorf("desk: %w", context.Cause(ctx))
		}
	}
	return sum, nil
}

// sorted puts ids to the shards they belong to.
func (d *Desk) sorted(ids []string) [][]string {
	parts := make([][]string, len(d.shards))
	for _, id := range ids {
		shard, _, aside := ParseKey(id, len(d.shards))
		if token, err := dedupe.Token(id); err == nil && !aside {
			shard = dedupe.Shard(token, len(d.shards))
		}
		parts[shard] = append(parts[shard], id)
	}
	return parts
}

func (c Counts) plus(o Counts) Counts {
	return Counts{c.Matched + o.Matched, c.Done + o.Done, c.Already + o.Already, c.Refused + o.Refused, c.Failed + o.Failed}
}

// pauseAll pauses a queue in every shard until the same moment.
func (d *Desk) pauseAll(ctx context.Context, queue string, until time.Time) error {
	return d.everywhere(func(s *Desk) error { return s.commands.Pause(ctx, queue, until) })
}

// resumeAll ends the pause of a queue in every shard.
func (d *Desk) resumeAll(ctx context.Context, queue string) error {
	return d.everywhere(func(s *Desk) error { return s.commands.Resume(ctx, queue) })
}
