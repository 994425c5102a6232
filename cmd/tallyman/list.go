package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/kvstate"
)

type listCommand struct {
	State string `help:"Only commands in this state: pending (nobody has written about it yet), ${states}." placeholder:"S"`
	Kind  string `help:"Only commands of this kind." placeholder:"K"`
	Limit int    `help:"Stop after this many; 0 for no limit." default:"0" placeholder:"N"`
	JSON  bool   `name:"json" help:"Print one JSON object per line."`
}

// errEnough ends a scan whose limit is reached.
var errEnough = errors.New("enough")

// Run lists records in the order in which they were last written, of a sharded
// pool one shard after the other.
func (c *listCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	states := append(kvstate.States(), pending)
	if c.State != "" && !slices.Contains(states, kvstate.State(c.State)) {
		return fmt.Errorf("%w: --state %q; give one of %v", cli.ErrUsage, c.State, states)
	}
	if c.Limit < 0 {
		return fmt.Errorf("%w: --limit %d; give 0 or more", cli.ErrUsage, c.Limit)
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		match := func(r *kvstate.Record) bool {
			return (c.State == "" || c.State == string(r.State)) && (c.Kind == "" || c.Kind == r.Kind)
		}
		if kvstate.State(c.State) == pending {
			return c.listPending(ctx, pool, out)
		}
		if c.JSON {
			return each(ctx, pool, c.Limit, match, func(shard int, e kvstate.Entry) error { return out.JSON(summaryOf(pool, shard, e)) })
		}
		t := newTable(out)
		t.row("ID", "KIND", "QUEUE", "STATE", "ATTEMPT", "OWNER", "WRITTEN", "REASON")
		err := each(ctx, pool, c.Limit, match, func(_ int, e kvstate.Entry) error {
			r := e.Record
			t.row(r.ID, r.Kind, r.Queue, r.State, r.Attempt, r.Owner, moment(r.StoredAt), r.Reason)
			return nil
		})
		return errors.Join(err, t.Flush())
	})
}

// each calls visit with the records that match, of one shard after the other, up
// to limit in all if that is above 0.
// Records that did not decode match nothing; a line on stderr says so.
func each(ctx context.Context, pool *tallyman.Pool, limit int, match func(*kvstate.Record) bool, visit func(shard int, e kvstate.Entry) error) error {
	n, damaged := 0, 0
	err := scan(ctx, pool, func(shard int, e kvstate.Entry) error {
		if e.Err != nil {
			damaged++
		}
		if kvstate.Own(e.Key) || e.Record == nil || !match(e.Record) {
			return nil
		}
		if err := visit(shard, e); err != nil {
			return err
		}
		if n++; n == limit {
			return errEnough
		}
		return nil
	})
	if damaged > 0 {
		fmt.Fprintf(os.Stderr, "tallyman: left out %d with a damaged record; tallyman audit names them\n", damaged)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// summaryView is one line of list and parked.
type summaryView struct {
	ID      string         `json:"id"`
	Kind    string         `json:"kind"`
	Queue   string         `json:"queue"`
	State   kvstate.State  `json:"state"`
	Attempt int            `json:"attempt"`
	Owner   string         `json:"owner"`
	At      time.Time      `json:"at,omitzero"`
	Reason  kvstate.Reason `json:"reason,omitempty"`
	Error   string         `json:"error,omitempty"`
	// Key is set where a record is not filed under its id, as that of a
	// malformed command or a conflict is. In a sharded pool it names the shard.
	Key string `json:"key,omitempty"`
}

func summaryOf(pool *tallyman.Pool, shard int, e kvstate.Entry) summaryView {
	r := e.Record
	return summaryView{
		ID: r.ID, Kind: r.Kind, Queue: r.Queue, State: r.State, Attempt: r.Attempt, Owner: r.Owner,
		At: r.StoredAt, Reason: r.Reason, Error: r.Error, Key: asideKey(pool, shard, e),
	}
}
