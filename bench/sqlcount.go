package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"

	_ "modernc.org/sqlite"
)

// statements counts what this process asked of databases that openCounted opened:
// statements, beginnings and ends of transactions.
var statements atomic.Int64

// openCounted opens an SQLite database whose statements are counted.
func openCounted(file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "")
	if err != nil {
		return nil, err
	}
	defer db.Close() // it was only asked for its driver
	return sql.OpenDB(countingConnector{driver: db.Driver(), dsn: "file:" + file + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"}), nil
}

type countingConnector struct {
	driver driver.Driver
	dsn    string
}

func (c countingConnector) Driver() driver.Driver { return c.driver }

func (c countingConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return countedSQL{conn}, nil
}

// countedSQL hands on what database/sql asks of a connection.
type countedSQL struct{ driver.Conn }

func (c countedSQL) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	statements.Add(1)
	e, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return e.ExecContext(ctx, query, args)
}

func (c countedSQL) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	statements.Add(1)
	q, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return q.QueryContext(ctx, query, args)
}

func (c countedSQL) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	statements.Add(2)
	b, ok := c.Conn.(driver.ConnBeginTx)
	if !ok {
		return c.Begin()
	}
	return b.BeginTx(ctx, opts)
}

func (c countedSQL) ResetSession(ctx context.Context) error {
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c countedSQL) IsValid() bool {
	v, ok := c.Conn.(driver.Validator)
	return !ok || v.IsValid()
}
