package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Status is where the row of a command stands.
type Status struct {
	ID         string
	Kind       string
	State      string // pending, sending, published or failed
	Run        string // of the event that asked for it; empty if none did
	Event      int64  // its number in the run
	Owner      string // the relay that sends it now
	Deliveries int    // claims by relays so far
	Attempts   int    // of those that failed
	Error      string // of the last one
	Receipt    string // final state of the command, once a relay has seen it
	Behind     string // id of the first unpublished row of its order key, if that is another and comes before it

	CreatedAt time.Time
	Due       time.Time // when it may be claimed next, or claimed over; zero for never
	Published time.Time
	Settled   time.Time // when a relay saw the receipt
}

var selectStatus = statementOf(`SELECT id, kind, state, coalesce(run_id, ''), coalesce(event_seq, 0), coalesce(owner, ''),
	deliveries, attempts, coalesce(error, ''), coalesce(receipt, ''),
	{micros created_at}, coalesce({micros available_at}, 0), coalesce({micros published_at}, 0), coalesce({micros settled_at}, 0),
	CASE WHEN published_at IS NULL THEN coalesce((SELECT ahead.id FROM tallyman_outbox AS ahead
		WHERE ahead.order_key = asked.order_key AND ahead.published_at IS NULL AND ahead.seq < asked.seq ORDER BY ahead.seq LIMIT 1), '') ELSE '' END
	FROM tallyman_outbox AS asked WHERE id = $1`)

// Find returns where the row of a command stands. ErrNoRow if there is none:
// it was never added, or removed after its retention.
func Find(ctx context.Context, tx Tx, id string) (Status, error) {
	var (
		s                                Status
		created, due, published, settled int64
	)
	err := tx.QueryRow(ctx, selectStatus.in(tx.Dialect()), id).Scan(&s.ID, &s.Kind, &s.State, &s.Run, &s.Event, &s.Owner,
		&s.Deliveries, &s.Attempts, &s.Error, &s.Receipt, &created, &due, &published, &settled, &s.Behind)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoRow
	}
	if err != nil {
		return Status{}, fmt.Errorf("outbox: find %q: %w", id, err)
	}
	for _, t := range []struct {
		to     *time.Time
		micros int64
	}{{&s.CreatedAt, created}, {&s.Due, due}, {&s.Published, published}, {&s.Settled, settled}} {
		if t.micros > 0 {
			*t.to = time.UnixMicro(t.micros).UTC()
		}
	}
	return s, nil
}
