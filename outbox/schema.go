package outbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"
)

//go:embed migrations
var migrations embed.FS

// migrationKey is what PostgreSQL's advisory lock is taken on: "tallyman" in ASCII.
const migrationKey = 0x74616c6c796d616e

// migrationWait is how long a migration of SQLite waits for writers, in milliseconds.
const migrationWait = 30_000

// step is one migration. Steps that have been released never change.
type step struct {
	version int
	name    string
	sql     string
}

// stepsOf returns the migrations of a dialect in order.
func stepsOf(d Dialect) ([]step, error) {
	dir := "migrations/postgres"
	switch d {
	case SQLite:
		dir = "migrations/sqlite"
	case Postgres:
	default:
		return nil, errors.New("outbox: Dialect is not set; use outbox.SQLite or outbox.Postgres")
	}
	names, err := fs.Glob(migrations, dir+"/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	steps := make([]step, 0, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(path.Base(name), "-")
		if version, err := strconv.Atoi(number); err != nil || version != i+1 {
			return nil, fmt.Errorf("outbox: migration %s is out of order", name)
		}
		text, err := migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{i + 1, path.Base(name), string(text)})
	}
	return steps, nil
}

const createSchema = `CREATE TABLE IF NOT EXISTS tallyman_schema (version integer PRIMARY KEY, name text NOT NULL)`

// Migrate creates the tables of this package or brings them up to date, in one
// transaction. It is safe to repeat, and safe while others migrate: one of them
// does the work and the others wait. It is the owner's act and needs the right
// to create tables; Add, Once and the relay get by without.
//
// ErrNoSchema means that the tables come from a later version of this package.
func Migrate(ctx context.Context, db *sql.DB, d Dialect) error {
	steps, err := stepsOf(d)
	if err != nil {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	defer conn.Close()
	begin := "BEGIN"
	if d == SQLite {
		// The write is announced at once, so that two that start together
		// queue up instead of failing when the second one turns to writing.
		begin = "BEGIN IMMEDIATE"
		restore, err := waitForWriters(ctx, conn)
		if err != nil {
			return fmt.Errorf("outbox: migrate: %w", err)
		}
		defer restore()
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	if err := migrate(ctx, conn, d, steps); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_, undone := conn.ExecContext(undo, "ROLLBACK")
		return errors.Join(fmt.Errorf("outbox: migrate: %w", err), undone)
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	return nil
}

// waitForWriters makes a connection of SQLite wait for other writers, and
// returns what sets it back.
func waitForWriters(ctx context.Context, conn *sql.Conn) (restore func(), err error) {
	var before int
	if err := conn.QueryRowContext(ctx, "PRAGMA busy_timeout").Scan(&before); err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", migrationWait)); err != nil {
		return nil, err
	}
	return func() {
		// Only a broken connection refuses it, and that one is thrown away.
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", before))
	}, nil
}

func migrate(ctx context.Context, conn *sql.Conn, d Dialect, steps []step) error {
	if d == Postgres {
		if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationKey)); err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, createSchema); err != nil {
		return err
	}
	var have int
	if err := conn.QueryRowContext(ctx, selectVersion).Scan(&have); err != nil {
		return err
	}
	if have > len(steps) {
		return newerSchema(have, len(steps))
	}
	for _, s := range steps[have:] {
		// One statement at a time: not every driver takes several at once.
		for text := range strings.SplitSeq(s.sql, ";\n") {
			if strings.TrimSpace(text) == "" {
				continue
			}
			if _, err := conn.ExecContext(ctx, text); err != nil {
				return fmt.Errorf("step %s: %w", s.name, err)
			}
		}
		if _, err := conn.ExecContext(ctx, addVersion.in(d), s.version, s.name); err != nil {
			return fmt.Errorf("step %s: %w", s.name, err)
		}
	}
	return nil
}

const selectVersion = `SELECT coalesce(max(version), 0) FROM tallyman_schema`

var (
	addVersion   = statementOf(`INSERT INTO tallyman_schema (version, name) VALUES ($1, $2)`)
	schemaExists = statementsOf(
		`SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'tallyman_schema'`,
		`SELECT count(*) FROM (SELECT to_regclass('tallyman_schema') AS t) AS found WHERE t IS NOT NULL`)
)

// CheckSchema returns ErrNoSchema, with the remedy, unless the tables are there
// in the version that this package wants.
func CheckSchema(ctx context.Context, db *sql.DB, d Dialect) error {
	steps, err := stepsOf(d)
	if err != nil {
		return err
	}
	var there, have int
	if err := db.QueryRowContext(ctx, schemaExists.in(d)).Scan(&there); err != nil {
		return fmt.Errorf("outbox: look for the tables: %w", err)
	}
	if there > 0 {
		if err := db.QueryRowContext(ctx, selectVersion).Scan(&have); err != nil {
			return fmt.Errorf("outbox: read the version of the tables: %w", err)
		}
	}
	switch {
	case have > len(steps):
		return fmt.Errorf("outbox: %w", newerSchema(have, len(steps)))
	case have == 0:
		return fmt.Errorf("outbox: %w: there are none; create them with outbox.Migrate, or producer relay --migrate", ErrNoSchema)
	case have < len(steps):
		return fmt.Errorf("outbox: %w: they have version %d, this program wants %d; bring them up to date with outbox.Migrate, or producer relay --migrate", ErrNoSchema, have, len(steps))
	}
	return nil
}

func newerSchema(have, known int) error {
	return fmt.Errorf("%w: they have version %d, and this program knows up to %d; use a later version of it", ErrNoSchema, have, known)
}
