// Testworker is a worker whose handlers write down what they do. It takes its
// settings from the environment, ends in order at SIGTERM, at once at the
// second one, and when its standard input is closed, so that it never outlives
// the test that started it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tallyman-go/tallyman"
)

func main() {
	if err := run(); err != nil {
		slog.Error("worker failed", "error", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		// Nothing is ever written there: the read ends with the parent.
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(3)
	}()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(2)
	}()

	effects, err := os.OpenFile(os.Getenv("TALLYMAN_EFFECTS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open effects: %w", err)
	}
	defer func() { _ = effects.Close() }() // each line is written by then
	w := &world{effects: effects, gates: os.Getenv("TALLYMAN_GATES"), token: strconv.Itoa(os.Getpid())}

	nc, err := tallyman.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer nc.Close()
	pool, err := tallyman.Open(ctx, nc, tallyman.DefaultPool)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }() // the process ends
	worker, err := pool.NewWorker(tallyman.WorkerConfig{
		Mux:         w.mux(),
		Queues:      strings.Fields(os.Getenv("TALLYMAN_QUEUES")),
		Concurrency: number("TALLYMAN_CONCURRENCY", 16),
		Drain:       time.Duration(number("TALLYMAN_DRAIN_MS", 5000)) * time.Millisecond,
		Grace:       time.Duration(number("TALLYMAN_GRACE_MS", 1000)) * time.Millisecond,
		// Ties what a record says to the process that wrote it.
		Name: "p" + w.token,
		Observe: func(e tallyman.Event) {
			w.write("event", e.ID, e.Attempt, 0, e.Type.String())
		},
	})
	if err != nil {
		return err
	}
	w.write("started", "-", 0, 0, "-")
	err = worker.Run(ctx)
	w.write("stopped", "-", 0, 0, "-")
	return err
}

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}
