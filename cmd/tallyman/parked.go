package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/kvstate"
)

type parkedCommand struct {
	filterFlags
	JSON bool `name:"json" help:"Print one JSON object per line."`
}

// Run lists what waits for a human, of a sharded pool one shard after the other,
// and says on stderr what may be done.
func (c *parkedCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	filter, err := c.filter()
	if err != nil {
		return err
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		now := time.Now()
		match := func(r *kvstate.Record) bool { return r.State == kvstate.Parked && filter.Match(r, now) }
		if c.JSON {
			return each(ctx, pool, 0, match, func(shard int, e kvstate.Entry) error {
				v := summaryOf(pool, shard, e)
				v.At = e.Record.Since()
				return out.JSON(v)
			})
		}
		ids, aside := 0, 0
		t := newTable(out)
		t.row("ID", "KIND", "QUEUE", "ATTEMPT", "SINCE", "REASON", "ERROR")
		err := each(ctx, pool, 0, match, func(shard int, e kvstate.Entry) error {
			r := e.Record
			id := r.ID
			ids++
			if key := asideKey(pool, shard, e); key != "" {
				ids--
				aside++
				if string(e.Key) != id || sharded(pool) {
					id += " (" + key + ")"
				}
			}
			t.row(id, r.Kind, r.Queue, r.Attempt, moment(r.Since()), r.Reason, r.Error)
			return nil
		})
		if err = errors.Join(err, t.Flush()); err != nil {
			return err
		}
		if ids > 0 {
			fmt.Fprintln(os.Stderr, "to go on: tallyman show ID, then requeue, resolve or discard")
		}
		if aside > 0 {
			fmt.Fprintln(os.Stderr, "what is filed under a key in brackets, or with one for an id, can only be discarded: tallyman discard KEY")
		}
		return nil
	})
}
