// Package database opens what --db names, with the drivers that the commands
// link.
//
// A DSN begins with postgres:// or postgresql://, which is a connection string
// of PostgreSQL, or with sqlite: and the path of a file, or with file:, which
// is a URI of SQLite. A file must exist unless Create is given. Connections to
// SQLite wait up to 10 s for other writers, and write ahead (journal mode WAL).
//
// Wrong DSNs are wrong usage, exit code 2. Errors never print a password.
// All functions are safe for concurrent use.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/outbox"
	_ "modernc.org/sqlite" // driver "sqlite"
)

// openTime bounds the first look at the database.
const openTime = 10 * time.Second

const forms = "give postgres://user@host/database, sqlite:PATH or file:PATH"

// Database is a database that answers.
type Database struct {
	*sql.DB
	Dialect outbox.Dialect
	DSN     string // for PostgreSQL, to listen with
}

// Open opens the database that dsn names and makes sure that it answers. Create
// allows it to create a file of SQLite.
func Open(ctx context.Context, dsn string, create bool) (*Database, error) {
	driver, d, source, err := parse(dsn, create)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--db: %w", err))
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("--db: %w", err))
	}
	look, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if err := db.PingContext(look); err != nil {
		hint := "is it running, and are name and password right?"
		if d == outbox.SQLite {
			hint = "is that file a database of SQLite, and may it be read and written?"
		}
		return nil, errors.Join(fmt.Errorf("--db: the database does not answer: %w; %s", err, hint), db.Close())
	}
	return &Database{DB: db, Dialect: d, DSN: source}, nil
}

func parse(dsn string, create bool) (driver string, d outbox.Dialect, source string, err error) {
	scheme, rest, ok := strings.Cut(dsn, ":")
	switch {
	case !ok:
		return "", 0, "", fmt.Errorf("it has no scheme; %s", forms) // it may hold a password
	case scheme == "postgres" || scheme == "postgresql":
		if _, err := pgx.ParseConfig(dsn); err != nil {
			return "", 0, "", fmt.Errorf("%w; %s", err, forms) // pgx hides passwords
		}
		return "pgx", outbox.Postgres, dsn, nil
	case scheme == "sqlite" || scheme == "file":
		source, err := sqliteSource(rest, create)
		return "sqlite", outbox.SQLite, source, err
	}
	return "", 0, "", fmt.Errorf("there is no scheme %q; %s", scheme, forms)
}

// sqliteSource makes a URI of the path, with the settings of ours that it does
// not have itself.
func sqliteSource(rest string, create bool) (string, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	if path == "" {
		return "", fmt.Errorf("the path is missing; %s", forms)
	}
	if !create {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("there is no file %s; name one that exists, or create it with producer relay --migrate", path)
		} else if err != nil {
			return "", err
		}
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("%w; %s", err, forms)
	}
	q["_pragma"] = append([]string{"busy_timeout(10000)", "journal_mode(WAL)"}, q["_pragma"]...) // the user's come later and win
	if !q.Has("_txlock") {
		q.Set("_txlock", "immediate")
	}
	if !q.Has("mode") && !create {
		q.Set("mode", "rw")
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String(), nil
}
