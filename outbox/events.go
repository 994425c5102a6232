package outbox

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// Event is what a run decided.
type Event struct {
	Kind        string // 1 to 64 bytes of A-Z a-z 0-9 - _
	ContentType string // up to 256 bytes of UTF-8 without NUL; may be empty
	Data        []byte // may be empty
	// CommandID names the command that this event needs, one of those that are
	// committed with it; empty if it needs none.
	CommandID string
}

var (
	lastEvent = statementOf(`SELECT coalesce(max(seq), 0) FROM tallyman_events WHERE run_id = $1`)
	addEvent  = statementOf(`INSERT INTO tallyman_events (run_id, seq, kind, content_type, data, command_id)
		VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (run_id, seq) DO NOTHING`)
)

// CommitDecision writes what a run decided into the caller's transaction: its
// next events in the table tallyman_events, and the commands that they need in
// the outbox. Neither exists without the other. The first event gets the number
// expected+1; expected is the number of the last event that the decision is
// based on, 0 for a new run.
//
// Each command is traced to the run, and to the event that names it or else to
// the last one. A decision has at least one event, and an event that names a
// command names one of the same decision, which no other event names. The name
// of a run has 1 to 256 bytes of UTF-8 without NUL.
//
// ErrStale means that the run has other events by now; it and any other error
// mean that the transaction must be rolled back. Further errors are those of Add.
func CommitDecision(ctx context.Context, tx Tx, run string, expected uint64, events []Event, commands []Command) error {
	traced, err := trace(run, expected, events, commands)
	if err != nil {
		return fmt.Errorf("outbox: commit decision of run %q: %w", run, err)
	}
	d := tx.Dialect()
	var last uint64
	if err := tx.QueryRow(ctx, lastEvent.in(d), run).Scan(&last); err != nil {
		return fmt.Errorf("outbox: commit decision of run %q: %w", run, err)
	}
	if last != expected {
		return fmt.Errorf("outbox: commit decision of run %q: %w: it has %s, the decision is based on %d; read them again and decide anew", run, ErrStale, plural.Count(last, "event"), expected)
	}
	for i, e := range events {
		data := e.Data
		if data == nil {
			data = []byte{}
		}
		n, err := tx.Exec(ctx, addEvent.in(d), run, int64(expected)+int64(i)+1, e.Kind, e.ContentType, data, text(e.CommandID))
		if err != nil {
			return fmt.Errorf("outbox: commit decision of run %q: event %d: %w", run, expected+uint64(i)+1, err)
		}
		if n == 0 {
			return fmt.Errorf("outbox: commit decision of run %q: %w: someone else wrote event %d; read them again and decide anew", run, ErrStale, expected+uint64(i)+1)
		}
	}
	return Add(ctx, tx, traced...)
}

// trace checks a decision and returns its commands with the events that they belong to.
func trace(run string, expected uint64, events []Event, commands []Command) ([]Command, error) {
	if run == "" {
		return nil, fmt.Errorf("%w: the run has no name", ErrInvalidName)
	}
	if err := storable("name of the run", run); err != nil {
		return nil, err
	}
	if len(events) == 0 {
		return nil, fmt.Errorf("%w: a decision without events leaves no trace of what was decided; add one", ErrInvalidName)
	}
	traced := make([]Command, len(commands))
	index := make(map[string]int, len(commands))
	for i, c := range commands {
		if _, twice := index[c.ID]; twice {
			return nil, fmt.Errorf("%w: command %q is there twice", ErrConflict, c.ID)
		}
		c.run, c.eventSeq = run, 0
		traced[i], index[c.ID] = c, i
	}
	for i, e := range events {
		if err := command.ValidateName("kind of an event", e.Kind); err != nil {
			return nil, err
		}
		if err := storable("content type", e.ContentType); err != nil {
			return nil, err
		}
		if e.CommandID == "" {
			continue
		}
		at, ok := index[e.CommandID]
		if !ok {
			return nil, fmt.Errorf("%w: event %d needs command %q, which is not in this decision", ErrInvalidID, i+1, e.CommandID)
		}
		if traced[at].eventSeq > 0 {
			return nil, fmt.Errorf("%w: two events need command %q; give each its own", ErrConflict, e.CommandID)
		}
		traced[at].eventSeq = expected + uint64(i) + 1
	}
	for i := range traced {
		if traced[i].eventSeq == 0 {
			traced[i].eventSeq = expected + uint64(len(events))
		}
	}
	return traced, nil
}
