// Outboxpg commits what a run decided, and the commands that follow, in one
// transaction of pgx on PostgreSQL. The relay is woken by the commit.
//
//	go run ./examples/outboxpg postgres://user@host/database
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx", for the relay
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/outbox/pgxtx"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: outboxpg postgres://user@host/database")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outboxpg:", err)
		os.Exit(1)
	}
}

func run(dsn string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := outbox.Migrate(ctx, db, outbox.Postgres); err != nil {
		return err
	}
	server, err := embedded.Start(embedded.Config{})
	if err != nil {
		return err
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		return err
	}
	pool, err := tallyman.Open(ctx, nc, "main")
	if err != nil {
		return err
	}
	defer pool.Close()

	// Producer relay --db postgres://... does the same in a process of its own.
	quiet := slog.New(slog.DiscardHandler)
	relay, err := outbox.NewRelay(outbox.Config{
		DB: db, Dialect: outbox.Postgres, Submitter: outbox.Via(pool.NewProducer(tallyman.ProducerConfig{})), States: pool, Logger: quiet,
	})
	if err != nil {
		return err
	}
	mux := &tallyman.Mux{}
	mux.Handle("reserve", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: append([]byte("reserved "), c.Payload()...)}, nil
	}))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: quiet})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 3)
	go func() { ended <- relay.Run(working) }()
	go func() { ended <- worker.Run(working) }()
	go func() { ended <- pgxtx.Listen(working, dsn, relay.Wake, quiet) }()
	defer func() {
		stop()
		if err := errors.Join(<-ended, <-ended, <-ended); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()

	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it goes either way
	if err := decide(ctx, conn, 0); err != nil {
		return err
	}
	// Whoever decides on old events is refused, and nothing of it stays.
	if err := decide(ctx, conn, 0); !errors.Is(err, outbox.ErrStale) {
		return fmt.Errorf("a decision on old events: %w", err)
	}
	fmt.Fprintln(out, "the second decision was refused: the run has gone on")
	for _, id := range []string{"trip-1/train", "trip-1/hotel"} {
		receipt, err := pool.Wait(ctx, id)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", id, receipt.Result)
	}
	return nil
}

// decide commits two events of a run and the commands that they need.
func decide(ctx context.Context, conn *pgx.Conn, expected uint64) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		return outbox.CommitDecision(ctx, pgxtx.Wrap(tx), "trip-1", expected,
			[]outbox.Event{{Kind: "train_wanted", CommandID: "trip-1/train"}, {Kind: "hotel_wanted", CommandID: "trip-1/hotel"}},
			[]outbox.Command{
				{ID: "trip-1/train", Kind: "reserve", Payload: []byte("a seat"), OrderKey: "trip-1"},
				{ID: "trip-1/hotel", Kind: "reserve", Payload: []byte("a room"), OrderKey: "trip-1"},
			})
	})
}
