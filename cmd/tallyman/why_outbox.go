package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/story"
)

// sourceOutbox is the source of events that a database tells.
const sourceOutbox = "outbox"

// rowOf reads where the row of a command stands; nil if there is none.
func rowOf(ctx context.Context, dsn, id string) (*outbox.Status, error) {
	db, err := openOutbox(ctx, dsn, false)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	row, err := outbox.Find(ctx, db.Dialect.Tx(db.DB), id)
	if errors.Is(err, outbox.ErrNoRow) {
		return nil, nil
	}
	return &row, err
}

// rowEvents tells what a row has seen.
func rowEvents(r *outbox.Status) []story.Event {
	asked := "Its row was added to the outbox."
	if r.Run != "" {
		asked = fmt.Sprintf("Its row was added to the outbox with event %d of run %q.", r.Event, r.Run)
	}
	events := []story.Event{{At: r.CreatedAt, Source: sourceOutbox, What: "asked", Text: asked}}
	if r.Error != "" {
		events = append(events, story.Event{Source: sourceOutbox, What: "refused", Attempt: r.Attempts, Text: fmt.Sprintf("A relay tried in vain, for the last time with: %s.", r.Error)})
	}
	if !r.Published.IsZero() {
		events = append(events, story.Event{At: r.Published, Source: sourceOutbox, What: "published", Attempt: r.Deliveries, Text: fmt.Sprintf("A relay marked its row as published, on claim %d.", r.Deliveries)})
	}
	if !r.Settled.IsZero() {
		events = append(events, story.Event{At: r.Settled, Source: sourceOutbox, What: "settled", Text: fmt.Sprintf("A relay saw that it is %s.", r.Receipt)})
	}
	return events
}

// rowVerdict says where a command stands of which the pool knows nothing.
func rowVerdict(r *outbox.Status) string {
	switch {
	case r.State != "published" && r.Behind != "":
		return fmt.Sprintf("It waits in the outbox behind %q, which has the same order key and comes first: ask why of that.", r.Behind)
	case r.State == "failed" && !r.Due.IsZero():
		return fmt.Sprintf("It has not reached the pool; a relay tries again from %s on.", r.Due.Format("15:04:05 UTC"))
	}
	switch r.State {
	case "pending":
		return "It waits in the outbox, and the pool has not got it: a relay has to run."
	case "sending":
		return fmt.Sprintf("Relay %q is sending it, until %s at the latest; then another one may.", r.Owner, r.Due.Format("15:04:05 UTC"))
	case "failed":
		return "It has not reached the pool, and no relay tries any more: remove the cause, then: producer retry or producer discard."
	}
	return "It was published, and the pool knows nothing of it any more: its receipt has expired, or it was lost. Ask: tallyman audit --db."
}
