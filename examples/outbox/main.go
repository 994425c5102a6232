// Outbox books a seat in a SQLite database and asks for its payment in the same
// transaction. A relay carries the command to the pool, and the worker's effect
// on the database is committed once, however often it is delivered.
//
//	go run ./examples/outbox
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/outbox"
	_ "modernc.org/sqlite" // any driver will do
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "outbox")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary

	db, err := openDatabase(ctx, filepath.Join(dir, "app.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	pool, closePool, err := openPool(ctx)
	if err != nil {
		return err
	}
	defer closePool()

	// Producer relay --db sqlite:app.db does the same in a process of its own.
	relay, err := outbox.NewRelay(outbox.Config{
		DB: db, Dialect: outbox.SQLite, Submitter: outbox.Via(pool.NewProducer(tallyman.ProducerConfig{})), States: pool,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	mux := &tallyman.Mux{}
	mux.Handle("pay", payer(db, out))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(working) }()
	go func() { ended <- worker.Run(working) }()
	defer func() {
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()

	full := errors.New("the train is full")
	if err := book(ctx, db, "seat-1", full); !errors.Is(err, full) {
		return fmt.Errorf("book seat-1: %w", err)
	}
	fmt.Fprintln(out, "seat-1: rolled back, and nothing was asked for")
	if err := book(ctx, db, "seat-2", nil); err != nil {
		return err
	}
	receipt, err := pool.Wait(ctx, "pay-seat-2")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "seat-2: booked, and paid: %s\n", receipt.Result)
	if _, err := pool.Wait(soon(ctx), "pay-seat-1"); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("seat-1 was paid for: %w", err)
	}
	var seats, payments int
	if err := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM seats), (SELECT count(*) FROM payments)`).Scan(&seats, &payments); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d seat, %d payment\n", seats, payments)
	return nil
}

// soon bounds a wait for what must not come.
func soon(ctx context.Context) context.Context {
	bounded, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	context.AfterFunc(bounded, cancel)
	return bounded
}

// book writes the fact and the command that follows from it in one transaction.
func book(ctx context.Context, db *sql.DB, seat string, fail error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it is committed or of no interest
	if _, err := tx.ExecContext(ctx, `INSERT INTO seats (seat) VALUES (?)`, seat); err != nil {
		return err
	}
	err = outbox.Add(ctx, outbox.SQLite.Tx(tx), outbox.Command{ID: "pay-" + seat, Kind: "pay", Payload: []byte(seat)})
	if err != nil {
		return err
	}
	if fail != nil {
		return fail
	}
	return tx.Commit()
}

// payer is the handler: its effect on the database and the mark that the
// command was processed are one transaction.
func payer(db *sql.DB, out io.Writer) tallyman.HandlerFunc {
	return func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return tallyman.Result{}, err
		}
		defer tx.Rollback() //nolint:errcheck // it is committed or of no interest
		result, _, err := outbox.Once(ctx, outbox.SQLite.Tx(tx), claim, func(ctx context.Context) ([]byte, error) {
			_, err := tx.ExecContext(ctx, `INSERT INTO payments (seat) VALUES (?)`, string(claim.Payload()))
			return []byte("42.00"), err
		})
		if err != nil {
			return tallyman.Result{}, err
		}
		if err := tx.Commit(); err != nil {
			return tallyman.Result{}, err
		}
		fmt.Fprintf(out, "worker: took the money for %s\n", claim.Payload())
		return tallyman.Result{Body: result}, nil
	}
}

// openDatabase makes a database with the service's tables and those of the outbox.
func openDatabase(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	if err := outbox.Migrate(ctx, db, outbox.SQLite); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE seats (seat TEXT PRIMARY KEY); CREATE TABLE payments (seat TEXT PRIMARY KEY)`); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openPool makes a pool on a server in this process.
func openPool(ctx context.Context) (*tallyman.Pool, func(), error) {
	server, err := embedded.Start(embedded.Config{})
	if err != nil {
		return nil, nil, err
	}
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	closeAll := func() { nc.Close(); server.Close() }
	if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		closeAll()
		return nil, nil, err
	}
	pool, err := tallyman.Open(ctx, nc, "main")
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return pool, func() { _ = pool.Close(); closeAll() }, nil
}
