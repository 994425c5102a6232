package outbox

import (
	"context"
	"fmt"
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
