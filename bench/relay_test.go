package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/outbox"
	_ "modernc.org/sqlite"
)

// benchRows is how many rows one round adds or relays.
const benchRows = 5000

// BenchmarkOutbox compares, in rows per second: adding rows in transactions of
// 100, relaying them, and relaying them by a loop that reads, publishes and
// marks one row at a time. The database writes to disk as a service's would.
// Without a PostgreSQL that half is skipped; .ci/postgres starts one.
func BenchmarkOutbox(b *testing.B) {
	for _, d := range []outbox.Dialect{outbox.SQLite, outbox.Postgres} {
		b.Run(d.String(), func(b *testing.B) {
			db := openOutbox(b, d)
			pool := openBench(b)
			round := 0
			fill := func() {
				round++
				addRows(b, db, d, fmt.Sprint(d, round, "-"))
			}
			b.Run("add", func(b *testing.B) { rate(b, db, func() {}, fill) })
			b.Run("relay", func(b *testing.B) { rate(b, db, fill, func() { relayAll(b, db, d, pool) }) })
			b.Run("one row at a time", func(b *testing.B) { rate(b, db, fill, func() { relaySingly(b, db, pool) }) })
		})
	}
}

// rate reports how many rows per second f sees to. Prepare comes before, off the clock.
func rate(b *testing.B, db *sql.DB, prepare, f func()) {
	b.Helper()
	var took time.Duration
	rounds := 0
	for b.Loop() {
		prepare()
		began := time.Now()
		f()
		took += time.Since(began)
		rounds++
		if _, err := db.ExecContext(b.Context(), `DELETE FROM tallyman_outbox`); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(rounds*benchRows)/took.Seconds(), "rows/s")
	b.ReportMetric(0, "ns/op")
}

func openOutbox(b *testing.B, d outbox.Dialect) *sql.DB {
	b.Helper()
	driver, dsn := "sqlite", "file:"+filepath.Join(b.TempDir(), "app.db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	if d == outbox.Postgres {
		driver, dsn = "pgx", pgtest.DSN(b)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
	if err := outbox.Migrate(b.Context(), db, d); err != nil {
		b.Fatal(err)
	}
	return db
}

// openBench makes a pool on a server in this process.
func openBench(b *testing.B) *tallyman.Pool {
	b.Helper()
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Close)
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nc.Close)
	if err := tallyman.Create(b.Context(), nc, "relay", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		b.Fatal(err)
	}
	pool, err := tallyman.Open(b.Context(), nc, "relay")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pool.Close() }) // the connection goes next
	return pool
}

func addRows(b *testing.B, db *sql.DB, d outbox.Dialect, prefix string) {
	b.Helper()
	const each = 100
	payload := make([]byte, payloadSize)
	for n := 0; n < benchRows; n += each {
		tx, err := db.BeginTx(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		commands := make([]outbox.Command, each)
		for i := range commands {
			commands[i] = outbox.Command{ID: prefix + strconv.Itoa(n+i), Kind: kindName, Payload: payload}
		}
		if err := errors.Join(outbox.Add(b.Context(), d.Tx(tx), commands...), tx.Commit()); err != nil {
			b.Fatal(err)
		}
	}
}

// relayAll runs a relay until every row is published.
func relayAll(b *testing.B, db *sql.DB, d outbox.Dialect, pool *tallyman.Pool) {
	b.Helper()
	relay, err := outbox.NewRelay(outbox.Config{
		DB: db, Dialect: d, Submitter: outbox.Via(pool.NewProducer(tallyman.ProducerConfig{})), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for relay.Stats().Published < benchRows {
		<-look.C
	}
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

// relaySingly is what a loop does that takes one row at a time.
func relaySingly(b *testing.B, db *sql.DB, pool *tallyman.Pool) {
	b.Helper()
	for range benchRows {
		var c tallyman.Command
		var seq int64
		row := db.QueryRowContext(b.Context(), `SELECT seq, id, kind, payload FROM tallyman_outbox WHERE available_at IS NOT NULL AND order_key IS NULL ORDER BY available_at, seq LIMIT 1`)
		if err := row.Scan(&seq, &c.ID, &c.Kind, &c.Payload); err != nil {
			b.Fatal(err)
		}
		if _, err := pool.Submit(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		if _, err := db.ExecContext(b.Context(), `UPDATE tallyman_outbox SET state = 'published', available_at = NULL, published_at = due_at WHERE seq = $1`, seq); err != nil {
			b.Fatal(err)
		}
	}
}
