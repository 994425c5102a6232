package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/story"
)

type whyCommand struct {
	ID   string `arg:"" help:"Id of the command, as it was submitted, or a key such as _conflict/7 (in a sharded pool 3:_conflict/7) that parked names. Put -- before one that begins with -."`
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
		evidence, err := gatherWhy(ctx, pool, c.ID, c.Scan)
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

// gatherWhy reads what is known of an id, or of what was parked aside under a
// key. An id that looks like such a key comes first.
func gatherWhy(ctx context.Context, pool *tallyman.Pool, id string, scan bool) (story.Evidence, error) {
	terms, shards := pool.Settings(), pool.Shards()
	opts := story.Options{
		Scan: scan, RecordsOf: pool.RecordsOf, Shards: len(shards),
		Terms: story.Terms{Lease: terms.Lease, MaxAttempts: terms.MaxAttempts, Retention: terms.Retention},
	}
	home := shards[0]
	token, err := dedupe.Token(id)
	if err == nil && sharded(pool) {
		if home = pool.ShardOf(token); home.Index > 0 {
			opts.Intake = pool.Commands()
		}
	}
	opts.Shard = home.Index
	evidence, err := story.Gather(ctx, home.Commands, home.Records, id, opts)
	if err == nil {
		return evidence, nil
	}
	at, key, named := desk.ParseKey(id, len(shards))
	switch {
	case named && (token == "" || errors.Is(err, story.ErrNotFound)):
		opts.Shard, opts.Intake = at, nil
		return story.GatherAside(ctx, shards[at].Commands, shards[at].Records, key, opts)
	case errors.Is(err, story.ErrNotFound) && sharded(pool) && kvstate.Aside(command.Token(id)):
		return evidence, fmt.Errorf("%w; if it is meant as the key of a record that was parked aside, say the shard, as tallyman parked does: %s", err, desk.Key(0, len(shards), command.Token(id)))
	}
	return evidence, err
}
