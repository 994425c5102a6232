package main

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"

	"github.com/tallyman-go/tallyman/outbox"
	_ "modernc.org/sqlite"
)

// makeSource makes a database with n changes to ten accounts.
func makeSource(ctx context.Context, dir string, n int) (*sql.DB, error) {
	db, err := openDatabase(filepath.Join(dir, "source.db"))
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE changes (seq INTEGER PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL)`); err != nil {
		return db, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return db, err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	for i := range n {
		if _, err := tx.ExecContext(ctx, `INSERT INTO changes (account, cents) VALUES (?, ?)`, fmt.Sprint("account-", i%10), i%97-40); err != nil {
			return db, err
		}
	}
	return db, tx.Commit()
}

// makeTarget makes a database with balances, and with the tables of the outbox
// package, one of which holds the offset.
func makeTarget(ctx context.Context, dir string) (*sql.DB, error) {
	db, err := openDatabase(filepath.Join(dir, "target.db"))
	if err != nil {
		return nil, err
	}
	if err := outbox.Migrate(ctx, db, outbox.SQLite); err != nil {
		return db, err
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL)`)
	return db, err
}

func openDatabase(path string) (*sql.DB, error) {
	// Writers take their turn from the start of a transaction, and wait for it.
	return sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")
}

// differences compares the target with the sum of all changes.
func differences(ctx context.Context, source, target *sql.DB) (differ, accounts int, err error) {
	rows, err := source.QueryContext(ctx, `SELECT account, sum(cents) FROM changes GROUP BY account`)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = rows.Close() }() // what matters is in rows.Err
	for rows.Next() {
		var account string
		var want, got int64
		if err := rows.Scan(&account, &want); err != nil {
			return 0, 0, err
		}
		if err := target.QueryRowContext(ctx, `SELECT cents FROM balances WHERE account = ?`, account).Scan(&got); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", account, err)
		}
		accounts++
		if got != want {
			differ++
		}
	}
	return differ, accounts, rows.Err()
}
