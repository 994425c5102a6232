package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/internal/plural"
)

type reshardCommand struct {
	Shards int    `required:"" help:"How many shards the pool is to have, 1 to 256." placeholder:"N"`
	As     string `help:"Who acts, for the notes about parked commands (default: the user of the operating system)." env:"TALLYMAN_AS" placeholder:"NAME"`
	JSON   bool   `name:"json" help:"Print JSON."`
}

// Help tells what has to be done before.
func (c *reshardCommand) Help() string {
	return `Stop producers and relays, let the workers settle what is in the streams, stop
the workers, and run tallyman audit --seal. Nobody can open the pool until
tallyman reshard is done; if it is cut off, run it again, or run it with the
number of shards that there was, which turns it back. With the number that the
pool has, it brings records to their place that an audit found misplaced.`
}

// Run spreads the pool anew.
func (c *reshardCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	if c.Shards < 1 || c.Shards > tallyman.MaxShards {
		return fmt.Errorf("%w: --shards %d; give 1 to %d", cli.ErrUsage, c.Shards, tallyman.MaxShards)
	}
	act, err := (&actFlags{As: c.As}).act()
	if err != nil {
		return err
	}
	return connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		done, err := c.persist(ctx, nc, common.Pool, act.By)
		if err != nil {
			return err
		}
		if c.JSON {
			return out.JSON(map[string]any{"pool": common.Pool, "from": done.From, "to": done.To, "moved": done.Moved, "resumed": done.Resumed})
		}
		_, err = fmt.Fprintf(out, "pool %s has %s, it had %d; moved %s\n", line(common.Pool), plural.Count(done.To, "shard"), done.From, plural.Count(done.Moved, "entry"))
		return err
	})
}

// persist goes on where it was cut off because a server was away for a moment, or
// a stream that was just made had no leader yet.
func (c *reshardCommand) persist(ctx context.Context, nc *nats.Conn, pool, by string) (all tallyman.Resharded, err error) {
	until := time.Now().Add(initPatience + time.Duration(c.Shards)*initShard)
	moved := uint64(0)
	for {
		done, err := tallyman.Reshard(ctx, nc, pool, c.Shards, by)
		moved += done.Moved
		done.Moved = moved
		if err == nil || !passing(err) || time.Now().After(until) {
			return done, err
		}
		fmt.Fprintf(os.Stderr, "tallyman: going on in a moment: %s\n", cli.Text(err))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return done, err
		}
	}
}
