package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/outbox"
)

// TestFailed lets an operator decide about rows that failed for good, without
// any server.
func TestFailed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := openSQLite(t, filepath.Join(dir, "app.db"))
	if err := outbox.Migrate(t.Context(), db, outbox.SQLite); err != nil {
		t.Fatal(err)
	}
	run := func(code int, args ...string) (stdout, stderr string) {
		t.Helper()
		got, stdout, stderr := clitest.Run(t, dir, nil, append(args, "--db", "sqlite:app.db")...)
		if got != code {
			t.Fatalf("%v: exit code %d, want %d; stdout %q, stderr %q", args, got, code, stdout, stderr)
		}
		return stdout, stderr
	}
	if out, _ := run(0, "failed"); out != "no row has failed for good\n" {
		t.Errorf("got %q of an outbox that is well", out)
	}
	if out, _ := run(0, "failed", "--json"); out != "" {
		t.Errorf("got %q of an outbox that is well, in JSON", out)
	}
	var commands []outbox.Command
	for i := range 5 {
		commands = append(commands, outbox.Command{ID: fmt.Sprintf("f-%d", i), Kind: "mail"})
	}
	if err := outbox.Add(t.Context(), outbox.SQLite.Tx(db), commands...); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `UPDATE tallyman_outbox SET state = 'failed', available_at = NULL, attempts = 3, error = 'no' || char(10) || 'luck' WHERE id <> 'f-4'`); err != nil {
		t.Fatal(err)
	}
	out, _ := run(0, "failed")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 5 || !strings.HasPrefix(lines[1], "f-0  mail  3 ") || !strings.HasSuffix(lines[1], `"no\nluck"`) {
		t.Errorf("got\n%s\nwant a head and four rows, the error on one line", out)
	}
	if out, _ := run(0, "failed", "--json"); strings.Count(out, "\n") != 4 || !strings.Contains(out, `"id":"f-0"`) || !strings.Contains(out, `"error":"no\nluck"`) {
		t.Errorf("got\n%s\nwant four objects", out)
	}
	for _, verb := range []string{"retry", "discard"} {
		if _, stderr := run(2, verb); !strings.Contains(stderr, "give ids of failed rows, or --all") {
			t.Errorf("%s: got %q, want what to give", verb, stderr)
		}
		if _, stderr := run(2, verb, "f-1", "--all"); !strings.Contains(stderr, "give ids of failed rows, or --all") {
			t.Errorf("%s: got %q, want what to give", verb, stderr)
		}
	}
	// One that has not failed does not keep the others from it.
	out, stderr := run(1, "retry", "f-4", "f-0")
	if out != "f-0: to be tried again\n" || !strings.Contains(stderr, `retry "f-4"`) {
		t.Errorf("got %q and %q, want f-0 only", out, stderr)
	}
	if out, _ := run(0, "discard", "f-1"); out != "f-1: discarded\n" {
		t.Errorf("got %q", out)
	}
	if out, _ := run(0, "retry", "--all"); out != "f-2: to be tried again\nf-3: to be tried again\n" {
		t.Errorf("got %q, want what was left", out)
	}
	for id, want := range map[string]string{"f-0": "pending", "f-1": "", "f-2": "pending", "f-3": "pending", "f-4": "pending"} {
		s, err := outbox.Find(context.Background(), outbox.SQLite.Tx(db), id)
		if s.State != want || (err != nil) != (want == "") {
			t.Errorf("%s: got %q, %v, want %q", id, s.State, err, want)
		}
	}
}

// TestFailed_CutOff ends an act on all rows where it cannot go on.
func TestFailed_CutOff(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db := openSQLite(t, path)
	if err := outbox.Migrate(t.Context(), db, outbox.SQLite); err != nil {
		t.Fatal(err)
	}
	var commands []outbox.Command
	for i := range 5 {
		commands = append(commands, outbox.Command{ID: fmt.Sprintf("f-%d", i), Kind: "mail"})
	}
	if err := outbox.Add(t.Context(), outbox.SQLite.Tx(db), commands...); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `UPDATE tallyman_outbox SET state = 'failed', available_at = NULL`); err != nil {
		t.Fatal(err)
	}
	all := failedRows{ofOutbox: ofOutbox{DB: "sqlite:" + path}, All: true}
	decide := func(ctx context.Context, act func(id string) error) (acts int, err error) {
		err = all.decide(ctx, &cli.Out{Writer: io.Discard}, func(_ context.Context, _ outbox.Tx, id string) error {
			acts++
			return act(id)
		}, "done")
		return acts, err
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	for _, c := range []struct {
		name string
		act  func(id string) error
		acts int
		want error
	}{
		{"one that somebody else has decided meanwhile is none any more", func(id string) error {
			if id == "f-1" {
				return outbox.ErrNoRow
			}
			return nil
		}, 5, nil},
		{"the database is away", func(id string) error { return driver.ErrBadConn }, 1, driver.ErrBadConn},
		{"it is interrupted", func(id string) error {
			interrupt()
			return nil
		}, 1, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			if acts, err := decide(ctx, c.act); acts != c.acts || !errors.Is(err, c.want) {
				t.Errorf("got %d acts, %v; want %d, %v", acts, err, c.acts, c.want)
			}
		})
	}
}
