package main

import (
	"context"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

type pauseCommand struct {
	Queue string        `arg:"" help:"Name of the queue."`
	For   time.Duration `help:"Resume by itself after this long (default: stay until resumed)." placeholder:"D"`
	actFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Run stops the deliveries of a queue.
func (c *pauseCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	if c.For < 0 {
		return fmt.Errorf("%w: --for %v; give a duration above 0, such as 30m", cli.ErrUsage, c.For)
	}
	act, err := c.act()
	if err != nil {
		return err
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		until, err := deskOf(pool).Pause(ctx, act, c.Queue, c.For)
		if err != nil {
			return err
		}
		if c.JSON {
			return out.JSON(map[string]any{"queue": c.Queue, "paused": true, "until": until})
		}
		_, err = fmt.Fprintf(out, "queue %s is paused %s; handlers that run go on\n", c.Queue, untilText(until))
		return err
	})
}

type resumeCommand struct {
	Queue string `arg:"" help:"Name of the queue."`
	actFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Run ends a pause.
func (c *resumeCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	act, err := c.act()
	if err != nil {
		return err
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		if err := deskOf(pool).Resume(ctx, act, c.Queue); err != nil {
			return err
		}
		if c.JSON {
			return out.JSON(map[string]any{"queue": c.Queue, "paused": false})
		}
		_, err := fmt.Fprintf(out, "queue %s delivers\n", c.Queue)
		return err
	})
}

// untilText spells the end of a pause for people. What lies decades ahead is
// no date that anybody meant.
func untilText(until time.Time) string {
	if time.Until(until) > 10*365*24*time.Hour {
		return "until it is resumed"
	}
	return "until " + moment(until)
}
