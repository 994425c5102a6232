package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	riverqueue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// river is River on PostgreSQL, as it comes or as it is tuned by its makers.
type river struct {
	name  string
	share int
	tuned bool
	inTx  bool // each handler completes its job in a transaction of its own
}

const (
	riverBatch   = 5000 // jobs of one insert at most, as in River's own benchmark
	riverWorkers = 100  // of the untuned one, the number in River's introduction
	riverConns   = 20   // of the tuned one; the pool's default is 4, or one per core
	riverTxConns = 50   // where each handler holds one, so many handlers as well: the best of 4, 20, 50 and 100
)

func (r river) Name() string { return r.name }
func (river) System() system { return postgres{} }
func (r river) Share() int   { return r.share }

func (r river) Create(ctx context.Context, url string) error {
	return r.connected(ctx, url, func(pool *pgxpool.Pool) error {
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
		if err != nil {
			return err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return err
	})
}

// Produce inserts in one statement whatever has come since the last one was
// sent: many when the commands come fast, one when they come slowly.
func (r river) Produce(ctx context.Context, url string, commands iter.Seq[Command]) error {
	return r.connected(ctx, url, func(pool *pgxpool.Pool) error {
		client, err := riverqueue.NewClient(riverpgxv5.New(pool), &riverqueue.Config{Logger: quiet()})
		if err != nil {
			return err
		}
		insert := func(params []riverqueue.InsertManyParams) error {
			_, err := client.InsertMany(ctx, params)
			return err
		}
		if r.tuned {
			insert = func(params []riverqueue.InsertManyParams) error {
				_, err := client.InsertManyFast(ctx, params)
				return err
			}
		}
		return inBatches(ctx, commands, riverBatch, func(batch []Command) error {
			params := make([]riverqueue.InsertManyParams, len(batch))
			for i, c := range batch {
				params[i].Args = noopArgs{ID: c.ID, Payload: string(c.Payload)}
			}
			return insert(params)
		})
	})
}

func (r river) Work(ctx context.Context, url string) error {
	return r.connected(ctx, url, func(pool *pgxpool.Pool) error {
		workers := riverqueue.NewWorkers()
		if r.inTx {
			riverqueue.AddWorker(workers, &txWorker{pool: pool})
		} else {
			riverqueue.AddWorker(workers, &noopWorker{})
		}
		config := riverqueue.Config{
			Logger:  quiet(),
			Queues:  map[string]riverqueue.QueueConfig{riverqueue.QueueDefault: {MaxWorkers: riverWorkers}},
			Workers: workers,
		}
		if r.tuned {
			// What the program `river bench` sets, and says why.
			config.FetchCooldown = 2 * time.Millisecond
			config.FetchPollInterval = 20 * time.Millisecond
			config.Queues[riverqueue.QueueDefault] = riverqueue.QueueConfig{MaxWorkers: 2000}
			if r.inTx {
				config.Queues[riverqueue.QueueDefault] = riverqueue.QueueConfig{MaxWorkers: riverTxConns}
			}
		}
		client, err := riverqueue.NewClient(riverpgxv5.New(pool), &config)
		if err != nil {
			return err
		}
		if err := client.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		return client.Stop(stop)
	})
}

func (river) Watch(ctx context.Context, url string) (books, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	return &seldom{books: &riverBooks{conn: conn}, every: 50 * time.Millisecond}, nil // the end is told by the rows
}

// connected calls f with a pool of connections that ends with it.
func (r river) connected(ctx context.Context, url string, f func(*pgxpool.Pool) error) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	if r.tuned {
		config.MaxConns = riverConns
	}
	if r.inTx {
		config.MaxConns = riverTxConns
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(pool)
}

func quiet() *slog.Logger {
	return slog.New(slog.DiscardHandler)
}

// noopArgs is a command as River keeps it.
type noopArgs struct {
	ID      string `json:"id"`
	Payload string `json:"payload"`
}

func (noopArgs) Kind() string { return kindName }

type noopWorker struct {
	riverqueue.WorkerDefaults[noopArgs]
}

func (*noopWorker) Work(context.Context, *riverqueue.Job[noopArgs]) error { return nil }

// txWorker completes each job in the transaction of its own work, which is
// River's way to have effect and completion commit as one. Here the work is empty.
type txWorker struct {
	riverqueue.WorkerDefaults[noopArgs]
	pool *pgxpool.Pool
}

func (w *txWorker) Work(ctx context.Context, job *riverqueue.Job[noopArgs]) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit there is nothing to undo
	if _, err := riverqueue.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// riverBooks read River's only table. When a row was completed is told by the
// time of the transaction that wrote it last, which PostgreSQL keeps.
type riverBooks struct{ conn *pgx.Conn }

func (b *riverBooks) Close() { _ = b.conn.Close(context.Background()) } // it was only read from

// Time has nothing to prepare: the cluster keeps the times of commits anyway.
func (*riverBooks) Time(context.Context) error { return nil }

// Settled looks at the newest row alone for as long as that is not completed:
// counting them all would slow the server down.
func (b *riverBooks) Settled(ctx context.Context, n int) (time.Time, bool, error) {
	var newest string
	err := b.conn.QueryRow(ctx, `SELECT state FROM river_job ORDER BY id DESC LIMIT 1`).Scan(&newest)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && newest != "completed" {
		return time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read the newest row: %w", err)
	}
	var rows, completed int
	var end *time.Time
	if err := b.conn.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 'completed'), max(pg_xact_commit_timestamp(xmin)) FROM river_job`).
		Scan(&rows, &completed, &end); err != nil {
		return time.Time{}, false, fmt.Errorf("count the rows: %w", err)
	}
	if rows < n || completed < rows {
		return time.Time{}, false, nil
	}
	if end == nil {
		return time.Time{}, false, errors.New("PostgreSQL does not tell when a row was written")
	}
	return *end, true, nil
}

func (b *riverBooks) Completions(ctx context.Context) (map[string]time.Time, error) {
	rows, err := b.conn.Query(ctx, `SELECT args->>'id', state::text, attempt, pg_xact_commit_timestamp(xmin) FROM river_job`)
	if err != nil {
		return nil, fmt.Errorf("read the rows: %w", err)
	}
	at := make(map[string]time.Time)
	var id, state string
	var attempt int
	var committed time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &attempt, &committed}, func() error {
		if _, twice := at[id]; twice || state != "completed" || attempt != 1 {
			return fmt.Errorf("%s: state %s after %d attempts, there before: %t; want it completed once", id, state, attempt, twice)
		}
		at[id] = committed
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the rows: %w", err)
	}
	return at, nil
}
