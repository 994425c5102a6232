package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
)

var (
	retryRow = statementsOf(
		`UPDATE tallyman_outbox SET state = 'pending', available_at = {now}, attempts = 0 WHERE id = $1 AND state = 'failed'`,
		`WITH again AS (UPDATE tallyman_outbox SET state = 'pending', available_at = now(), attempts = 0 WHERE id = $1 AND state = 'failed' RETURNING 1)
		SELECT pg_notify('`+Channel+`', '') FROM again`)
	discardRow = statementOf(`DELETE FROM tallyman_outbox WHERE id = $1 AND state = 'failed'`)
)

// Retry makes a failed row pending again, with all its tries before it. It is
// an operator's act, after the cause was removed. ErrNoRow if no failed row has
// that id.
func Retry(ctx context.Context, tx Tx, id string) error {
	return one(ctx, tx, "retry", retryRow, id)
}

// Discard removes a failed row: the command is never submitted, and rows that
// come after it in the order of its key go on. It is an operator's act.
// ErrNoRow if no failed row has that id.
func Discard(ctx context.Context, tx Tx, id string) error {
	return one(ctx, tx, "discard", discardRow, id)
}

func one(ctx context.Context, tx Tx, verb string, s statement, id string) error {
	n, err := tx.Exec(ctx, s.in(tx.Dialect()), id)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: none of that id has failed", ErrNoRow)
	}
	if err != nil {
		return fmt.Errorf("outbox: %s %q: %w", verb, id, err)
	}
	return nil
}

// selectFailed lists failed rows that are not tried again. The index on failed rows serves it.
var selectFailed = statementOf(`SELECT seq, id FROM tallyman_outbox
	WHERE state = 'failed' AND available_at IS NULL AND seq > $1 ORDER BY seq LIMIT $2`)

// Failed yields where each failed row stands that is not tried again and waits
// for an operator, in the order in which rows were added. One that is decided
// meanwhile is left out. It ends with the first error.
func Failed(ctx context.Context, db *sql.DB, d Dialect) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		for after := int64(0); ; {
			seqs, ids, err := pageOf(ctx, db, selectFailed.in(d), after, auditBatch)
			if err != nil {
				yield(Status{}, fmt.Errorf("outbox: list failed rows: %w", err))
				return
			}
			for _, id := range ids {
				s, err := Find(ctx, d.Tx(db), id)
				if errors.Is(err, ErrNoRow) || err == nil && (s.State != "failed" || !s.Due.IsZero()) {
					continue
				}
				if !yield(s, err) || err != nil {
					return
				}
			}
			if len(seqs) < auditBatch {
				return
			}
			after = seqs[len(seqs)-1]
		}
	}
}
