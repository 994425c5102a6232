package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/outbox/pgxtx"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}))
}

// open returns a connection to a database with the tables in it.
func open(t *testing.T) (conn *pgx.Conn, dsn string) {
	t.Helper()
	dsn = pgtest.DSN(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := outbox.Migrate(t.Context(), db, outbox.Postgres); err != nil {
		t.Fatal(err)
	}
	conn, err = pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) }) // nothing is lost with it
	return conn, dsn
}

var _ = stdlib.GetDefaultDriver // registers "pgx"

func within(ctx context.Context, conn *pgx.Conn, f func(outbox.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(pgxtx.Wrap(tx)) })
}

func count(t *testing.T, conn *pgx.Conn, query string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Everything that works on a transaction works on one of pgx.
func TestWrap(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conn, _ := open(t)
	boom := errors.New("boom")
	decide := func(fail error) error {
		return within(ctx, conn, func(tx outbox.Tx) error {
			if err := outbox.CommitDecision(ctx, tx, "run", 0, []outbox.Event{{Kind: "paying", CommandID: "pay"}}, []outbox.Command{
				{ID: "pay", Kind: "pay", Payload: []byte("1"), NotAfter: time.Now().Add(time.Hour), NotBefore: time.Now(), OrderKey: "k"},
			}); err != nil {
				return err
			}
			return fail
		})
	}
	if err := decide(boom); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if got := count(t, conn, `SELECT (SELECT count(*) FROM tallyman_outbox) + (SELECT count(*) FROM tallyman_events)`); got != 0 {
		t.Fatalf("%d rows are left after the error, want none", got)
	}
	if err := decide(nil); err != nil {
		t.Fatal(err)
	}
	add := func(payload string) error {
		return within(ctx, conn, func(tx outbox.Tx) error {
			return outbox.Add(ctx, tx, outbox.Command{ID: "pay", Kind: "pay", Payload: []byte(payload)})
		})
	}
	if err := add("1"); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := add("2"); !errors.Is(err, tallyman.ErrConflict) {
		t.Errorf("another payload: got %v, want ErrConflict", err)
	}
	if err := decide(nil); !errors.Is(err, outbox.ErrStale) {
		t.Errorf("got %v, want ErrStale", err)
	}
	claim := tallyman.Detached(tallyman.DetachedConfig{Command: tallyman.Command{ID: "c"}, Token: 3})
	calls := 0
	for i := range 2 {
		if err := within(ctx, conn, func(tx outbox.Tx) error {
			if err := outboxAdvance(ctx, tx, claim, i); err != nil {
				return err
			}
			got, repeated, err := outbox.Once(ctx, tx, claim, func(context.Context) ([]byte, error) { calls++; return []byte("result"), nil })
			if string(got) != "result" || repeated != (i == 1) {
				t.Errorf("call %d: got %q, %t", i, got, repeated)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 1 {
		t.Errorf("the business was done %d times, want once", calls)
	}
	if err := within(ctx, conn, func(tx outbox.Tx) error { return outbox.Retry(ctx, tx, "pay") }); !errors.Is(err, outbox.ErrNoRow) {
		t.Errorf("got %v, want ErrNoRow", err)
	}
	if _, err := conn.Exec(ctx, `UPDATE tallyman_outbox SET state = 'failed', available_at = NULL`); err != nil {
		t.Fatal(err)
	}
	if err := within(ctx, conn, func(tx outbox.Tx) error { return outbox.Retry(ctx, tx, "pay") }); err != nil {
		t.Error(err)
	}
}

// outboxAdvance moves the offset the first time, and finds it moved the second.
func outboxAdvance(ctx context.Context, tx outbox.Tx, claim outbox.Claim, round int) error {
	at, err := outbox.Offset(ctx, tx, claim)
	if err != nil || round > 0 && at == 5 {
		return err
	}
	return outbox.Advance(ctx, tx, claim, at, 5, func(context.Context) error { return nil })
}

// Add wakes those who listen once it commits, and a connection that is cut is made anew.
func TestListen(t *testing.T) {
	t.Parallel()
	conn, dsn := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan struct{}, 1000)
	ended := make(chan error, 1)
	go func() {
		ended <- pgxtx.Listen(ctx, dsn+"&application_name=listener_"+t.Name(), func() { woken <- struct{}{} }, slog.New(slog.DiscardHandler))
	}()
	wait := func(what string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(time.Minute):
			t.Fatalf("not woken by %s", what)
		}
	}
	wait("the beginning")
	n := 0
	add := func() {
		t.Helper()
		n++
		if err := within(ctx, conn, func(tx outbox.Tx) error {
			return outbox.Add(ctx, tx, outbox.Command{ID: fmt.Sprint(n), Kind: "k"})
		}); err != nil {
			t.Fatal(err)
		}
	}
	add()
	wait("a commit")
	// Others of this server may notify too; what counts is that it listens again.
	if got := count(t, conn, `SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener_TestListen') AS x`); got != 1 {
		t.Fatalf("%d connections were cut, want 1", got)
	}
	wait("the new connection")
	for len(woken) > 0 {
		<-woken
	}
	add()
	wait("a commit after the loss")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := pgxtx.Listen(t.Context(), "postgres://%zz", func() {}, slog.Default()); err == nil {
		t.Error("a connection string that cannot be read is no error")
	}
}
