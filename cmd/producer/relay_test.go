package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/outbox"
)

func TestRelay_WrongUsage(t *testing.T) {
	t.Parallel()
	server, _ := newPool(t, embedded.Config{})
	noDatabase := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(noDatabase, []byte("this is no database, but a file of notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no database", nil, 2, "--db"},
		{"no scheme", []string{"--db", "secret@host"}, 2, "it has no scheme; give postgres://"},
		{"an unknown scheme", []string{"--db", "mysql://root:secret@host/db"}, 2, `no scheme "mysql"; give postgres://`},
		{"a DSN that cannot be read", []string{"--db", "postgres://u:secret@host:port/db"}, 2, "give postgres://"},
		{"a file that is no database", []string{"--db", "sqlite:" + noDatabase}, 1, "is that file a database of SQLite"},
		{"a server that is not there", []string{"--db", "postgres://u:secret@127.0.0.1:1/db?sslmode=disable"}, 1, "the database does not answer"},
		{"a file that does not exist", []string{"--db", "sqlite:missing.db"}, 2, "there is no file missing.db; name one that exists, or create it with producer relay --migrate"},
		{"no path", []string{"--db", "sqlite:"}, 2, "the path is missing"},
		{"a batch of none", []string{"--db", "sqlite:x", "--batch", "0"}, 2, "--batch 0"},
		{"a short lease", []string{"--db", "sqlite:x", "--lease", "1ms"}, 2, "--lease 1ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := clitest.Run(t, t.TempDir(), nil, append([]string{"relay", "--server", server.URL()}, c.args...)...)
			if code != c.code || !strings.Contains(stderr, c.want) || strings.Contains(stderr, "secret") {
				t.Errorf("exit code %d, stderr %q; want %d and %q, and no password", code, stderr, c.code, c.want)
			}
		})
	}
	t.Run("a database without tables", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		db := openSQLite(t, filepath.Join(dir, "app.db"))
		if _, err := db.ExecContext(t.Context(), `CREATE TABLE mine (x)`); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := clitest.Run(t, dir, nil, "relay", "--server", server.URL(), "--db", "sqlite:app.db")
		if code != 1 || !strings.Contains(stderr, "create them with outbox.Migrate, or producer relay --migrate") {
			t.Errorf("exit code %d, stderr %q; want 1 and the remedy", code, stderr)
		}
	})
}

func openSQLite(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
	return db
}

// The whole way: rows become commands and these receipts, the metrics tell of
// it, and the relay stops when it is asked to.
func TestRelay_CarriesRowsToTheirReceipts(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, db *sql.DB, d outbox.Dialect, dir, dsn string) {
		t.Helper()
		server, pool := newPool(t, embedded.Config{})
		work(t, pool, func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{Body: c.Payload()}, nil
		})
		relay := clitest.Start(t, dir, nil, "relay", "--server", server.URL(), "--db", dsn, "--migrate", "--http", "127.0.0.1:0")
		addr := regexp.MustCompile(`http=(\S+)`).FindStringSubmatch(relay.Line(t, "http="))[1]
		relay.Line(t, "relaying")
		const n = 50
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			c := outbox.Command{ID: fmt.Sprint("c ", i), Kind: "k", Payload: fmt.Append(nil, i)}
			if i%2 == 0 {
				c.OrderKey = fmt.Sprint(i % 4)
			}
			if err := outbox.Add(t.Context(), d.Tx(tx), c); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		for i := range n {
			r, err := pool.Wait(ctx, fmt.Sprint("c ", i))
			if err != nil || string(r.Result) != fmt.Sprint(i) {
				t.Fatalf("receipt of command %d: %q, %v", i, r.Result, err)
			}
		}
		scrape := func(path string) string {
			req, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return string(body)
		}
		want := []string{fmt.Sprintf("\ntallyman_relay_published_total %d\n", n), "\ntallyman_relay_taken_over_total 0\n", "\ntallyman_relay_failed_total 0\n", "\ntallyman_outbox_pending ", "\ntallyman_outbox_oldest_seconds "}
		for missing := want; len(missing) > 0; {
			body := scrape("/metrics")
			missing = nil
			for _, line := range want {
				if !strings.Contains(body, line) {
					missing = append(missing, line)
				}
			}
			if ctx.Err() != nil {
				t.Fatalf("the metrics lack %q:\n%s", missing, body)
			}
		}
		if got := scrape("/readyz"); got != "ready\n" {
			t.Errorf("/readyz says %q", got)
		}
		http.DefaultClient.CloseIdleConnections()
		relay.Signal(t, syscall.SIGTERM)
		if code := relay.Wait(t); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
	}
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		run(t, openSQLite(t, filepath.Join(dir, "a b%.db")), outbox.SQLite, dir, "sqlite:a b%.db")
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
		run(t, db, outbox.Postgres, t.TempDir(), dsn)
	})
}
