// Sync shows a handler whose result is in a database: it copies changes from
// one to another, and the offset moves in the same transaction. A worker that
// is taken for dead in the middle wakes up later, and the database refuses it.
//
//	go run ./examples/sync
//
// handler.go is what a user would write.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
)

const changes = 5000

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sync:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "sync-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary
	source, err := makeSource(ctx, dir, changes)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := makeTarget(ctx, dir)
	if err != nil {
		return err
	}
	defer target.Close()

	server, err := embedded.Start(embedded.Config{})
	if err != nil {
		return err
	}
	defer server.Close()
	pool, done, err := open(ctx, server.URL())
	if err != nil {
		return err
	}
	defer done()

	// The first worker stops in the middle of a batch, for longer than its lease.
	stopped, overtaken := make(chan struct{}), make(chan struct{})
	refused := make(chan error, 1)
	first := copier{source: source, target: target, before: func(_ context.Context, offset uint64) {
		if offset == 1000 {
			close(stopped)
			<-overtaken
		}
	}}
	firstDone, err := start(ctx, server.URL(), func(claimed context.Context, claim *tallyman.Claim, in Sync) (Synced, error) {
		// As a process that was frozen, it does not hear that its lease has ended.
		result, err := first.handle(context.WithoutCancel(claimed), claim, in)
		refused <- err
		return result, err
	}, stopped)
	if err != nil {
		return err
	}
	defer firstDone()
	command, err := syncing.Command("sync-1", Sync{})
	if err != nil {
		return err
	}
	if _, err := pool.Submit(ctx, command); err != nil {
		return err
	}
	<-stopped
	fmt.Fprintln(out, "the first worker stands still after 1000 changes")

	// The second one takes over where the target stands.
	began := make(chan uint64, 1)
	second := copier{source: source, target: target, before: func(_ context.Context, offset uint64) {
		select {
		case began <- offset:
		default:
		}
		if offset == 3000 {
			close(overtaken) // and the first one wakes up
			if err := <-refused; !errors.Is(err, tallyman.ErrLeaseLost) {
				panic(fmt.Sprintf("the first worker was not refused: %v", err))
			}
			fmt.Fprintln(out, "the first worker wakes up, and the database refuses its batch")
		}
	}}
	secondDone, err := start(ctx, server.URL(), second.handle, nil)
	if err != nil {
		return err
	}
	defer secondDone()
	receipt, err := pool.Wait(ctx, "sync-1")
	if err != nil {
		return err
	}
	synced, err := syncing.Result(receipt)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the second worker went on behind change %d and finished at %d, on attempt %d\n", <-began, synced.Through, receipt.Attempt)
	differ, accounts, err := differences(ctx, source, target)
	if err != nil {
		return err
	}
	if differ > 0 || synced.Through != changes {
		return fmt.Errorf("%d of %d balances differ", differ, accounts)
	}
	fmt.Fprintf(out, "all %d balances are those of the source: each change was applied once\n", accounts)
	return nil
}

// open connects to the pool, which it makes if need be.
func open(ctx context.Context, url string) (*tallyman.Pool, func(), error) {
	nc, err := tallyman.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	// A short lease, so that a worker that stands still is soon noticed.
	if err := tallyman.Create(ctx, nc, "sync", tallyman.Settings{Lease: time.Second}, tallyman.Topology{}); err != nil {
		nc.Close()
		return nil, nil, err
	}
	pool, err := tallyman.Open(ctx, nc, "sync")
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return pool, func() { _ = pool.Close(); nc.Close() }, nil
}

// start runs a worker on a connection of its own, which it loses once cut is closed.
func start(ctx context.Context, url string, handle func(context.Context, *tallyman.Claim, Sync) (Synced, error), cut <-chan struct{}) (stop func(), err error) {
	pool, done, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	mux := &tallyman.Mux{}
	// The database compares tokens, so there has to be one from the start.
	if err := mux.Route(tallyman.Route{Kind: syncing.Name(), Handler: syncing.Handler(handle), Eager: true}); err != nil {
		return nil, err
	}
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = worker.Run(working) // the first one loses its connection
	}()
	if cut != nil {
		go func() { <-cut; done() }()
	}
	return func() { cancel(); <-ended; done() }, nil
}
