package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/stream"
)

const (
	// initPatience is how long init, and status, keep trying while the cluster is not ready.
	initPatience = 30 * time.Second
	// initTry bounds one try, or a third of the patience does if that is more: a stream
	// without a leader answers nothing.
	initTry = 10 * time.Second
	// initShard is what each shard adds to the patience.
	initShard = time.Second
)

type initCommand struct {
	Lease       time.Duration `help:"How long a silent worker keeps a command (new pool: 30s)." placeholder:"D"`
	Replicas    int           `help:"Copies of stream and records, 1 to 5 (new pool: 1)." placeholder:"N"`
	MaxAttempts int           `help:"Attempts before a failing command is parked (new pool: 10)." placeholder:"N"`
	BackoffMin  time.Duration `help:"Delay after the first failed attempt (new pool: 1s)." placeholder:"D"`
	BackoffMax  time.Duration `help:"Longest delay between attempts (new pool: 10m)." placeholder:"D"`
	Retention   time.Duration `help:"How long receipts are kept (new pool: 168h)." placeholder:"D"`
	Removal     string        `help:"How settled commands leave the stream: ack, each at once, or sweep, in bulk, which costs the server less. Fixed when the pool is made (new pool: ack)." enum:",ack,sweep" default:"" placeholder:"ack|sweep"`
	Shards      int           `help:"Pairs of stream and bucket over which the ids are spread, 1 to 256 (new pool: 1). Later: tallyman reshard." placeholder:"N"`
	Queue       []string      `help:"Queue to create; may be repeated (default: default)." placeholder:"NAME"`
	MaxBytes    int64         `help:"Bound of the command stream in bytes; =-1 for none (new pool: none)." placeholder:"N"`
	MaxCommands int64         `help:"Bound of the command stream in commands; =-1 for none (new pool: none)." placeholder:"N"`
	Commit      string        `help:"How writes reach the server: each by itself, or those under way at the same time as a group with one flush to disk, for servers with sync_interval: always (new pool: each)." placeholder:"each|group"`
	Change      bool          `help:"Change settings of a pool that exists. Stop its workers first."`
	Journal     bool          `help:"Also create the pool's journal, for runs of events (docs/journal.md)."`
	JSON        bool          `name:"json" help:"Print JSON."`

	stderr io.Writer // for tests; os.Stderr if nil
}

// Run creates the pool and prints what it then is.
func (c *initCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	if c.Replicas < 0 || c.Replicas > 5 {
		return fmt.Errorf("%w: --replicas %d; give 1 to 5", cli.ErrUsage, c.Replicas)
	}
	if c.Shards < 0 || c.Shards > tallyman.MaxShards {
		return fmt.Errorf("%w: --shards %d; give 1 to %d", cli.ErrUsage, c.Shards, tallyman.MaxShards)
	}
	switch tallyman.Commit(c.Commit) {
	case "", tallyman.CommitEach, tallyman.CommitGroup:
	default:
		return fmt.Errorf("%w: --commit %q; give each or group", cli.ErrUsage, c.Commit)
	}
	return connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		if err := c.create(ctx, nc, common.Pool); err != nil {
			return err
		}
		pool, err := common.Open(ctx, nc)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Close() }() // never fails
		return c.print(ctx, pool, out)
	})
}

func (c *initCommand) create(ctx context.Context, nc *nats.Conn, pool string) error {
	settings := tallyman.Settings{
		Lease: c.Lease, MaxAttempts: c.MaxAttempts, Retention: c.Retention,
		BackoffMin: c.BackoffMin, BackoffMax: c.BackoffMax, Shards: c.Shards,
		Removal: tallyman.Removal(c.Removal), Commit: tallyman.Commit(c.Commit),
	}
	topology := tallyman.Topology{
		Replicas: c.Replicas, Queues: c.Queue, MaxBytes: c.MaxBytes, MaxCommands: c.MaxCommands, Change: c.Change,
	}
	return persist(ctx, initPatience+time.Duration(c.Shards)*initShard, c.stderr, func(ctx context.Context) error {
		if err := tallyman.Create(ctx, nc, pool, settings, topology); err != nil || !c.Journal {
			return err
		}
		return journal.Create(ctx, nc, journal.Config{Pool: pool, Replicas: c.Replicas})
	})
}

// persist calls do until it succeeds, fails for a reason that will not pass by
// itself, or patience is over. It tells stderr, once, why it waits.
func persist(ctx context.Context, patience time.Duration, stderr io.Writer, do func(context.Context) error) error {
	if stderr == nil {
		stderr = os.Stderr
	}
	until := time.Now().Add(patience)
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	told := false
	for {
		try, cancel := context.WithTimeout(ctx, max(initTry, patience/3))
		err := do(try)
		cancel()
		d := pause.NextBackOff()
		if err == nil || ctx.Err() != nil || !passing(err) || time.Now().Add(d).After(until) {
			return err
		}
		if !told {
			told = true
			fmt.Fprintf(stderr, "tallyman: the servers are not ready, trying for up to %v: %s\n", patience, cli.Text(err))
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return err
		}
	}
}

// passing reports whether an error may go away by itself.
func passing(err error) bool {
	for _, e := range []error{
		tallyman.ErrUnavailable, stream.ErrUnavailable, stream.ErrIndeterminate,
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrStaleConnection,
		nats.ErrReconnectBufExceeded, // nothing is kept for a server that is away
		nats.ErrNoResponders, jetstream.ErrNoHeartbeat,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (c *initCommand) print(ctx context.Context, pool *tallyman.Pool, out *cli.Out) error {
	state, err := pool.Commands().State(ctx)
	if err != nil {
		return err
	}
	queues, err := pool.Commands().Queues(ctx)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(queues))
	for _, q := range queues {
		names = append(names, q.Name)
	}
	if c.JSON {
		return out.JSON(struct {
			Pool     string       `json:"pool"`
			Settings settingsView `json:"settings"`
			Replicas int          `json:"replicas"`
			Queues   []string     `json:"queues"`
		}{pool.Name(), settingsOf(pool.Settings()), state.Replicas, names})
	}
	t := newTable(out)
	t.row("pool", pool.Name()+" is ready")
	t.settings(pool.Settings())
	t.row("replicas", state.Replicas)
	t.row("queues", strings.Join(names, " "))
	return t.Flush()
}
