package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/story"
)

type whyCommand struct {
	ID   string `arg:"" help:"Id of the command, as it was submitted. Put -- before one that begins with -."`
	Scan bool   `help:"Look through the whole bucket for copies that no note tells of."`
	UTC  bool   `name:"utc" help:"Print times in UTC instead of local time."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run tells what happened to one command.
func (c *whyCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		terms := pool.Settings()
		evidence, err := story.Gather(ctx, pool.Commands(), pool.Records(), c.ID, story.Options{
			Scan:  c.Scan,
			Terms: story.Terms{Lease: terms.Lease, MaxAttempts: terms.MaxAttempts, Retention: terms.Retention},
		})
		if err != nil {
			return fmt.Errorf("pool %q: %w", pool.Name(), err)
		}
		// What other sources know of the id goes into evidence.Extra.
		told := story.Tell(evidence)
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
