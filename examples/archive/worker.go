package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
)

const (
	poolName  = "archive"
	storeName = "packed"

	// Set for a worker: where the server is, and where to write what was done.
	serverEnv = "ARCHIVE_SERVER"
	logEnv    = "ARCHIVE_LOG"
)

// work is the worker process. It ends by being killed.
func work() error {
	ctx := context.Background()
	nc, err := tallyman.Connect(os.Getenv(serverEnv))
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	store, err := js.ObjectStore(ctx, storeName)
	if err != nil {
		return err
	}
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(os.Getenv(logEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p := packer{store: store, log: func(what string, n uint64) {
		if _, err := fmt.Fprintf(file, "%s %d\n", what, n); err != nil { // one write: a kill does not cut it
			panic(err)
		}
	}}
	mux := &tallyman.Mux{}
	archive.Handle(mux, p.handle)
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: quiet})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
