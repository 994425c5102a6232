package outbox

import (
	"context"
	"database/sql"
	"regexp"
	"strings"
	"time"
)

// Dialect is the kind of a database: SQLite or Postgres.
type Dialect int

// The dialects. The zero value is none of them.
const (
	SQLite   Dialect = iota + 1 // 3.42 or later, with any driver for database/sql
	Postgres                    // 13 or later, with any driver for database/sql, or pgx by package pgxtx
)

// String returns the dialect's name.
func (d Dialect) String() string {
	switch d {
	case SQLite:
		return "SQLite"
	case Postgres:
		return "PostgreSQL"
	}
	return "no dialect"
}

// Executor is what a transaction of database/sql has: *sql.Tx, and *sql.Conn
// between BEGIN and COMMIT.
type Executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Row is the one row that a query returns. Scan returns an error that matches
// sql.ErrNoRows if there is none.
type Row interface {
	Scan(dest ...any) error
}

// Tx is the caller's transaction, as this package uses it. Make one with
// Dialect.Tx, or with pgxtx.Wrap. It is as safe for concurrent use as what it wraps.
type Tx interface {
	// Exec returns how many rows were written.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	QueryRow(ctx context.Context, query string, args ...any) Row
	Dialect() Dialect
}

// Tx returns the caller's transaction for the functions of this package. It
// neither commits nor rolls back.
func (d Dialect) Tx(tx Executor) Tx { return sqlTx{tx, d} }

type sqlTx struct {
	tx      Executor
	dialect Dialect
}

func (t sqlTx) Dialect() Dialect { return t.dialect }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// statement is one SQL text in both dialects.
type statement struct{ sqlite, postgres string }

func (s statement) in(d Dialect) string {
	if d == SQLite {
		return s.sqlite
	}
	return s.postgres
}

// statementOf spells a text in both dialects. Parameters are $1, $2, ... and
// these stand for what differs:
//
//	{now}        the database's clock
//	{after $1}   so many microseconds from now
//	{time $1}    a parameter that holds a time, or NULL
//	{micros t}   a time as microseconds since 1970
//	{since t}    the microseconds from a time until now
//	{integer $1} a parameter whose type the database cannot see
func statementOf(text string) statement { return statementsOf(text, text) }

// statementsOf is statementOf for a text that differs by more than that.
func statementsOf(sqlite, postgres string) statement {
	return statement{sqlite: spell(sqlite, sqliteForms), postgres: spell(postgres, postgresForms)}
}

type form struct {
	pattern *regexp.Regexp
	with    string
}

var (
	sqliteForms = []form{
		{regexp.MustCompile(`\{after (\S+)\}`), "({now} + ${1})"},
		{regexp.MustCompile(`\{since (\S+)\}`), "({now} - ${1})"},
		{regexp.MustCompile(`\{(?:time|micros|integer) (\S+)\}`), "${1}"},
		{regexp.MustCompile(`\{now\}`), "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"},
		{regexp.MustCompile(`\$(\d+)`), "?${1}"},
	}
	postgresForms = []form{
		{regexp.MustCompile(`\{after (\S+)\}`), "(now() + ${1}::bigint * interval '1 microsecond')"},
		{regexp.MustCompile(`\{since (\S+)\}`), "(extract(epoch FROM now() - ${1}) * 1000000)::bigint"},
		{regexp.MustCompile(`\{micros (\S+)\}`), "CASE ${1} WHEN 'infinity' THEN NULL WHEN '-infinity' THEN 0 ELSE (extract(epoch FROM ${1}) * 1000000)::bigint END"},
		{regexp.MustCompile(`\{time (\S+)\}`), "${1}::timestamptz"},
		{regexp.MustCompile(`\{integer (\S+)\}`), "${1}::bigint"},
		{regexp.MustCompile(`\{now\}`), "now()"},
	}
)

func spell(text string, forms []form) string {
	for _, f := range forms {
		text = f.pattern.ReplaceAllString(text, f.with)
	}
	return strings.TrimSpace(text)
}

// time spells t as a parameter for {time}; the zero time is NULL.
func (d Dialect) time(t time.Time) any {
	switch {
	case t.IsZero():
		return nil
	case d == SQLite:
		return t.UnixMicro()
	}
	return t
}

// text spells s as a parameter; the empty string is NULL.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}
