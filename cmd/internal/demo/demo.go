package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/plural"
)

const (
	poolName    = "demo"
	objectsName = "packed"
	leaseTime   = 2 * time.Second
	spell       = 5 * time.Second        // how long the packing should last, so that faults have something to hit
	maxDelay    = 400 * time.Millisecond // of one file
	maxWorkers  = 32
	maxFaults   = 50
)

// Command is the demo on the command line.
type Command struct {
	Dir     string `help:"Directory whose files are packed. Nothing in it is written." default:"." type:"existingdir" placeholder:"DIR"`
	Workers int    `help:"Worker processes." default:"3" placeholder:"N"`
	Kills   int    `help:"How many workers to kill in the middle of their work." default:"2" placeholder:"N"`
	Freezes int    `help:"How many workers to freeze for longer than their lease." default:"1" placeholder:"N"`
	JSON    bool   `name:"json" help:"Print the books as one JSON object."`
}

// Run packs the directory and closes the books. Data goes to out, what happens
// meanwhile to stderr.
func (c *Command) Run(ctx context.Context, _ *cli.Common, out *cli.Out) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	began := time.Now()
	p, err := survey(ctx, root)
	if err != nil {
		return err
	}
	if len(p.orders) == 0 {
		return fmt.Errorf("%w: there is no file to pack in %s (%s left out); name another directory with --dir", cli.ErrUsage, dir, plural.Count(len(p.skipped), "file"))
	}
	state, err := os.MkdirTemp("", "tallyman-demo-")
	if err != nil {
		return err
	}
	defer func() {
		// The logs of the workers matter only if something went wrong other
		// than that somebody wanted to stop.
		if err != nil && ctx.Err() == nil && cli.Code(err) != cli.ExitParked {
			err = fmt.Errorf("%w (logs: %s)", err, state)
			_ = os.RemoveAll(filepath.Join(state, "store"))
			return
		}
		_ = os.RemoveAll(state) // a temporary directory; what is left harms nobody
	}()
	r := &run{
		plan: p, root: root, books: Books{Files: len(p.orders), Skipped: p.skipped, Notes: []string{}},
		faults: assign(p.orders, c.Kills, c.Freezes), reported: map[string]int{},
	}
	if err := r.work(ctx, c.Workers, dir, state); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped before the end: %w", context.Cause(ctx))
		}
		return err
	}
	r.books.Seconds = float64(time.Since(began).Milliseconds()) / 1000
	judged := r.books.judge(r.copies)
	if c.JSON {
		err = out.JSON(r.books)
	} else {
		err = r.books.print(out, judged)
	}
	return errors.Join(judged, err)
}

func (c *Command) validate() error {
	switch {
	case c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("%w: --workers is %d; give 1 to %d", cli.ErrUsage, c.Workers, maxWorkers)
	case c.Kills < 0 || c.Freezes < 0 || c.Kills+c.Freezes > maxFaults:
		return fmt.Errorf("%w: --kills %d and --freezes %d; give 0 to %d in all", cli.ErrUsage, c.Kills, c.Freezes, maxFaults)
	}
	return nil
}

// work does everything between the plan and the closed books, and leaves
// nothing behind but the logs in the directory state.
func (r *run) work(ctx context.Context, workers int, dir, state string) error {
	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(state, "store")})
	if err != nil {
		return err
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	settings := tallyman.Settings{
		Lease: leaseTime, BackoffMin: 100 * time.Millisecond, BackoffMax: time.Second,
		MaxAttempts: maxFaults + tallyman.DefaultMaxAttempts, // a fault costs an attempt and must not park anything
	}
	if err := tallyman.Create(ctx, nc, poolName, settings, tallyman.Topology{}); err != nil {
		return err
	}
	if r.objects, err = js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: objectsName}); err != nil {
		return fmt.Errorf("create object store: %w", err)
	}
	if r.pool, err = tallyman.Open(ctx, nc, poolName); err != nil {
		return err
	}
	defer r.pool.Close()
	if r.watch, err = newWatch(ctx, js); err != nil {
		return err
	}
	r.crew = &crew{url: server.URL(), dir: dir, state: state, delay: delay(len(r.plan.orders), workers)}
	defer r.crew.end()
	r.progress = newProgress(len(r.plan.orders))
	defer func() { r.progress.close() }()

	r.progress.say("packing %s (%.1f MB) of %s with %s", plural.Count(len(r.plan.orders), "file"), float64(r.plan.bytes)/1e6, dir, plural.Count(workers, "worker"))
	for range workers {
		if err := r.hire(); err != nil {
			return err
		}
	}
	if err := r.submit(ctx); err != nil {
		return err
	}
	if err := r.follow(ctx); err != nil {
		return err
	}
	return r.settle(ctx)
}

// delay is how long each file takes at least, so that all of them take about spell.
func delay(files, workers int) time.Duration {
	return min(spell*time.Duration(workers*handlers)/time.Duration(files), maxDelay)
}
