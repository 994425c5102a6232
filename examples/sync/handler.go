package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/outbox"
)

// Sync asks for all changes of the source to be applied to the target.
type (
	Sync   struct{}
	Synced struct{ Through uint64 }
)

var syncing = tallyman.NewKind[Sync, Synced]("sync")

// batch is how many changes are applied in one transaction.
const batch = 100

// copier copies changes from one database to another. The offset lies in the
// target and moves in the transaction that applies the changes, so that neither
// is there without the other, whoever dies in between.
type copier struct {
	source, target *sql.DB
	// before is called before each batch; here it is what goes wrong.
	before func(ctx context.Context, offset uint64)
}

func (c copier) handle(ctx context.Context, claim *tallyman.Claim, _ Sync) (Synced, error) {
	offset, err := c.offset(ctx, claim)
	if err != nil {
		return Synced{}, err
	}
	for {
		changes, err := c.read(ctx, offset)
		if err != nil || len(changes) == 0 {
			return Synced{Through: offset}, err
		}
		c.before(ctx, offset)
		to := changes[len(changes)-1].seq
		if err := c.apply(ctx, claim, offset, to, changes); err != nil {
			return Synced{}, err // ErrLeaseLost: somebody else has moved the offset
		}
		offset = to
		// Not needed to be right: it shows how far the work has got.
		if err := claim.Progress(ctx, offset, nil); err != nil {
			return Synced{}, err
		}
	}
}

// offset is where the target stands, whatever the claim says.
func (c copier) offset(ctx context.Context, claim *tallyman.Claim) (offset uint64, err error) {
	err = c.transaction(ctx, func(tx *sql.Tx) error {
		offset, err = outbox.Offset(ctx, outbox.SQLite.Tx(tx), claim)
		return err
	})
	return offset, err
}

// apply writes a batch and moves the offset, both or neither.
func (c copier) apply(ctx context.Context, claim *tallyman.Claim, from, to uint64, changes []change) error {
	return c.transaction(ctx, func(tx *sql.Tx) error {
		// UPDATE ... SET processed_offset = to WHERE processed_offset = from:
		// no row means that the offset is another one by now.
		return outbox.Advance(ctx, outbox.SQLite.Tx(tx), claim, from, to, func(ctx context.Context) error {
			for _, ch := range changes {
				// A change that were applied twice would show: it adds.
				if _, err := tx.ExecContext(ctx, `INSERT INTO balances (account, cents) VALUES (?, ?)
					ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents`, ch.account, ch.cents); err != nil {
					return fmt.Errorf("apply change %d: %w", ch.seq, err)
				}
			}
			return nil
		})
	})
}

func (c copier) transaction(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := c.target.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// change is one row of the source.
type change struct {
	seq     uint64
	account string
	cents   int64
}

// read returns the changes behind offset, at most a batch of them.
func (c copier) read(ctx context.Context, offset uint64) ([]change, error) {
	rows, err := c.source.QueryContext(ctx, `SELECT seq, account, cents FROM changes WHERE seq > ? ORDER BY seq LIMIT ?`, offset, batch)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // what matters is in rows.Err
	var changes []change
	for rows.Next() {
		var ch change
		if err := rows.Scan(&ch.seq, &ch.account, &ch.cents); err != nil {
			return nil, err
		}
		changes = append(changes, ch)
	}
	return changes, rows.Err()
}
