package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// rounds audits at an interval until ctx ends. A round that cannot be made, as
// while the servers are away, is logged and the next one tries again, over a
// connection of its own. The last report that was made decides how it ends.
func (c *auditCommand) rounds(ctx context.Context, common *cli.Common, out *cli.Out) error {
	switch {
	case c.Every < 0:
		return cli.Usage(fmt.Errorf("--every %v; give a positive interval, such as 1m", c.Every))
	case c.Against == "-":
		return cli.Usage(errors.New("--against - can be read but once; give --every a file"))
	}
	log := common.Logger()
	ended := errors.New("no audit was made")
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		a, err := c.audit(ctx, common)
		switch {
		case err == nil:
			ended = a.verdict(common)
			if !c.JSON && ended == nil {
				sealed := "sealed through"
				if len(a.Shards) > 0 {
					sealed = "sealed" // so many sequences: each shard has a last one of its own
				}
				_, err = fmt.Fprintf(out, "%s  %s; %d pending, %d parked, %s %d\n",
					time.Now().UTC().Format(time.RFC3339), a.Summary(), a.Pending, a.Parked, sealed, a.SealedThrough)
			} else {
				err = c.print(a, out)
			}
			if err != nil {
				return err // nobody reads any more
			}
		case ctx.Err() != nil:
		case errors.Is(err, cli.ErrUsage):
			return err
		default:
			log.Warn("no audit in this round, the next one tries again", "pool", common.Pool, "every", c.Every, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return ended
		}
	}
}
