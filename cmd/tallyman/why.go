package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/story"
	"github.com/tallyman-go/tallyman/stream"
)

type whyCommand struct {
	ID   string `arg:"" help:"Id of the command, as it was submitted. Put -- before one that begins with -."`
	Scan bool   `help:"Look through the whole bucket for copies that no note tells of."`
	DB   string `name:"db" help:"Database with an outbox that may hold its row: postgres://..., sqlite:PATH or file:PATH." placeholder:"DSN"`
	UTC  bool   `name:"utc" help:"Print times in UTC instead of local time."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run tells what happened to one command.
func (c *whyCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	var row *outbox.Status
	if c.DB != "" {
		var err error
		if row, err = rowOf(ctx, c.DB, c.ID); err != nil {
			return err
		}
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		terms := pool.Settings()
		home := pool.Shards()[0]
		var intake *stream.Stream
		if token, err := dedupe.Token(c.ID); err == nil && sharded(pool) {
			if home = pool.ShardOf(token); home.Index > 0 {
				intake = pool.Commands()
			}
		}
		evidence, err := story.Gather(ctx, home.Commands, home.Records, c.ID, story.Options{
			Scan: c.Scan, Intake: intake, RecordsOf: pool.RecordsOf,
			Terms: story.Terms{Lease: terms.Lease, MaxAttempts: terms.MaxAttempts, Retention: terms.Retention},
		})
		strange := errors.Is(err, story.ErrNotFound) // to the pool
		if err != nil && (!strange || row == nil) {
			return fmt.Errorf("pool %q: %w", pool.Name(), err)
		}
		evidence.ID = c.ID
		if row != nil {
			evidence.Extra = rowEvents(row)
		}
		told := story.Tell(evidence)
		if strange {
			told.State, told.Verdict, told.Unknown = "outbox_"+row.State, rowVerdict(row), nil
		}
		if c.JSON {
			return out.JSON(told)
		}
		where := time.Local
		if c.UTC {
			where = time.UTC
		}
		_, err = fmt.Fprint(out, told.Text(where))
		return err
	})
}
