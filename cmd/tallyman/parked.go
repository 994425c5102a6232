package main

import (
	"context"
	"errors"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/kvstate"
)

type parkedCommand struct {
	Kind string `help:"Only commands of this kind." placeholder:"K"`
	JSON bool   `name:"json" help:"Print one JSON object per line."`
}

// Run lists what waits for a human.
func (c *parkedCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		match := func(r *kvstate.Record) bool {
			return r.State == kvstate.Parked && (c.Kind == "" || c.Kind == r.Kind)
		}
		if c.JSON {
			return each(ctx, pool, 0, match, func(e kvstate.Entry) error { return out.JSON(summaryOf(e)) })
		}
		t := newTable(out)
		t.row("ID", "KIND", "QUEUE", "ATTEMPT", "SINCE", "REASON", "ERROR")
		err := each(ctx, pool, 0, match, func(e kvstate.Entry) error {
			r := e.Record
			id := r.ID
			if key := asideKey(e); key != "" && key != id {
				id += " (" + key + ")"
			}
			t.row(id, r.Kind, r.Queue, r.Attempt, moment(r.StoredAt), r.Reason, r.Error)
			return nil
		})
		return errors.Join(err, t.Flush())
	})
}
