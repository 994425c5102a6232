// Trip books journeys in steps that may fail: lock a budget, reserve a room,
// pay, settle. If a later step is refused, the earlier ones are undone. Each
// step is a command that a worker handles; each trip is a run of events in the
// journal, and so is the budget.
//
//	go run ./examples/trip
//
// A handler does one thing in the world, and commits what came of it together
// with the next command. It may die anywhere: the next attempt finds what was
// done by the command's id, and what was decided in the journal. Try it:
//
//	go run ./examples/trip -dir /tmp/trip -kill pay/effect    # dies after paying
//	go run ./examples/trip -dir /tmp/trip                     # goes on; nothing is paid twice
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/journal"
)

// The wishes that are booked, and what the world has in store for each.
var wishes = []Wish{
	{Trip: "lisbon", Cents: 42_000},               // goes well
	{Trip: "oslo", Cents: 30_000, SoldOut: true},  // no room: the budget is unlocked
	{Trip: "rome", Cents: 20_000, Declined: true}, // no money: the room is cancelled, too
	{Trip: "reykjavik", Cents: 500_000},           // too dear from the start
}

func main() {
	dir := flag.String("dir", "", "where to keep everything; empty: nowhere, begin anew each time")
	kill := flag.String("kill", "", "die at this point, such as pay/before, pay/effect, pay/decided or pay/submitted")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *dir, *kill); err != nil {
		fmt.Fprintln(os.Stderr, "trip:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, dir, kill string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "trip-"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	world, err := openWorld(filepath.Join(dir, "world"))
	if err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()

	// The operator's act, once. The leases are short, so that a restarted process goes on soon.
	if err := tallyman.Create(ctx, nc, "trips", tallyman.Settings{Lease: time.Second, BackoffMin: 100 * time.Millisecond}, tallyman.Topology{}); err != nil {
		return err
	}
	if err := journal.Create(ctx, nc, journal.Config{Pool: "trips", Lease: 2 * time.Second}); err != nil {
		return err
	}
	pool, err := tallyman.Open(ctx, nc, "trips")
	if err != nil {
		return err
	}
	defer pool.Close()
	j, err := journal.Open(ctx, nc, pool, journal.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = j.Close() }() // never fails

	o := &office{j: j, world: world, at: killer(kill)}
	// Asking again changes nothing: a trip is asked for once, under one commit id.
	for _, w := range wishes {
		if err := o.ask(ctx, w); err != nil {
			return err
		}
	}
	o.at("asked")
	stop, err := o.start(ctx, pool)
	if err != nil {
		return err
	}
	err = o.await(ctx)
	if err = errors.Join(err, stop()); err != nil {
		return err
	}
	return o.report(ctx, out)
}

// start runs a worker for the steps and a relay for the journal, until stop is called.
func (o *office) start(ctx context.Context, pool *tallyman.Pool) (stop func() error, err error) {
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: o.mux(), Logger: quiet})
	if err != nil {
		return nil, err
	}
	producer := pool.NewProducer(tallyman.ProducerConfig{})
	relay := journal.NewRelay(o.j, watched{producer, o.at}, journal.RelayConfig{Logger: quiet})
	life, end := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- worker.Run(life) }()
	go func() { ended <- relay.Run(life) }()
	return func() error {
		end()
		return errors.Join(<-ended, <-ended, producer.Close(context.Background()))
	}, nil
}

// await waits until every trip has come to an end.
func (o *office) await(ctx context.Context) error {
	for _, w := range wishes {
		for {
			trip, err := journal.Load(ctx, o.j, tripRun(w.Trip), trips)
			if err != nil {
				return err
			}
			if trip.State().over() {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("trip %s is still %s: %w", w.Trip, trip.State().Step, context.Cause(ctx))
			}
		}
	}
	return nil
}

// killer returns a function that kills this process, as hard as can be, once
// it comes to a point.
func killer(point string) func(string) {
	return func(here string) {
		if here != point {
			return
		}
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {} // dying
	}
}

// watched is a producer with a look at every submission, before and after.
type watched struct {
	*tallyman.Producer
	at func(string)
}

func (w watched) SubmitAsync(ctx context.Context, c tallyman.Command, done func(tallyman.Submission, error)) error {
	w.at(c.Kind + "/relayed")
	return w.Producer.SubmitAsync(ctx, c, func(s tallyman.Submission, err error) {
		w.at(c.Kind + "/submitted")
		done(s, err)
	})
}
