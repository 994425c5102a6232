package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// The kinds of findings.
const (
	EventWithoutCommand   = "event_without_command"    // an event needs a command that is neither here nor in the pool
	CommandOfAnotherEvent = "command_of_another_event" // the row of that command belongs to another event
	RowWithoutEvent       = "row_without_event"        // a row is traced to an event that does not exist
	ReceiptWithoutRow     = "receipt_without_row"      // the pool knows a command of which this database knows nothing
)

// FindingLimit is how many findings a report names at most.
const FindingLimit = 1000

const auditBatch = 1000

// Finding is something that does not fit.
type Finding struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"` // of the command
	Run    string `json:"run,omitempty"`
	Event  int64  `json:"event,omitempty"`
	Detail string `json:"detail"`
}

// Report is the account of an outbox.
type Report struct {
	Rows       map[string]int64 `json:"rows"`       // by state
	Settled    int64            `json:"settled"`    // published rows whose receipt was seen
	Events     int64            `json:"events"`     // that need a command
	Unprovable int64            `json:"unprovable"` // of these, events whose row and receipt may both have expired; and what the caller could not prove

	Findings     []Finding `json:"findings"`
	FindingCount int64     `json:"finding_count"`
	Balanced     bool      `json:"balanced"`
}

// Add books a finding.
func (r *Report) Add(f Finding) {
	if r.FindingCount++; len(r.Findings) < FindingLimit {
		r.Findings = append(r.Findings, f)
	}
	r.Balanced = false
}

// Summary says in a line how the books stand.
func (r Report) Summary() string {
	if r.Balanced {
		return "the outbox fits"
	}
	f := r.Findings[0]
	return fmt.Sprintf("the outbox has %s, the first is %s: %q: %s", plural.Count(r.FindingCount, "finding"), f.Kind, f.ID, f.Detail)
}

var (
	countRows   = statementOf(`SELECT state, count(*), count(settled_at) FROM tallyman_outbox GROUP BY state`)
	auditEvents = statementOf(`SELECT e.run_id, e.seq, e.command_id, {since e.created_at}, o.id IS NOT NULL, coalesce(o.run_id, ''), coalesce(o.event_seq, 0)
		FROM tallyman_events e LEFT JOIN tallyman_outbox o ON o.id = e.command_id
		WHERE e.command_id IS NOT NULL AND (e.run_id, e.seq) > ($1, {integer $2}) ORDER BY e.run_id, e.seq LIMIT $3`)
	auditRows = statementOf(`SELECT o.id, o.run_id, coalesce(o.event_seq, 0) FROM tallyman_outbox o
		LEFT JOIN tallyman_events e ON e.run_id = o.run_id AND e.seq = o.event_seq
		WHERE o.run_id IS NOT NULL AND e.seq IS NULL ORDER BY o.run_id, o.event_seq`)
	unknownIDs = statementsOf(
		`SELECT x.value FROM json_each($1) x WHERE NOT EXISTS (SELECT 1 FROM tallyman_outbox WHERE id = x.value)`,
		`SELECT x.value FROM json_array_elements_text($1::json) x WHERE NOT EXISTS (SELECT 1 FROM tallyman_outbox WHERE id = x.value)`)
)

// Audit checks the books of an outbox: every event that needs a command has
// exactly one, here or, once its row was removed, in the pool; and every row traces to
// its event. Keep is how long the pool keeps receipts: older events without a
// row are counted as unprovable. Whether the pool still has what was published
// is for the pool's audit to say: give it Published.
//
// An error means that the audit could not be made.
func Audit(ctx context.Context, db *sql.DB, d Dialect, states States, keep time.Duration) (Report, error) {
	r := Report{Rows: map[string]int64{}, Findings: []Finding{}, Balanced: true}
	for _, step := range []func(context.Context, *sql.DB, Dialect) error{
		r.countRows,
		func(ctx context.Context, db *sql.DB, d Dialect) error { return r.auditEvents(ctx, db, d, states, keep) },
		r.auditRows,
	} {
		if err := step(ctx, db, d); err != nil {
			return Report{}, fmt.Errorf("outbox: audit: %w", err)
		}
	}
	return r, nil
}

func (r *Report) countRows(ctx context.Context, db *sql.DB, d Dialect) error {
	found, err := db.QueryContext(ctx, countRows.in(d))
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var state string
		var n, settled int64
		if err := found.Scan(&state, &n, &settled); err != nil {
			return err
		}
		r.Rows[state] = n
		r.Settled += settled
	}
	return found.Err()
}

// need is an event that needs a command.
type need struct {
	run      string
	seq      int64
	id       string
	age      int64 // microseconds
	there    bool
	rowRun   string
	rowEvent int64
}

func (r *Report) auditEvents(ctx context.Context, db *sql.DB, d Dialect, states States, keep time.Duration) error {
	last := need{}
	for {
		page, err := needs(ctx, db, d, last)
		if err != nil {
			return err
		}
		var gone []need
		var ids []string
		for _, n := range page {
			r.Events++
			switch {
			case !n.there:
				gone, ids = append(gone, n), append(ids, n.id)
			case n.rowRun != n.run || n.rowEvent != n.seq:
				r.Add(Finding{CommandOfAnotherEvent, n.id, n.run, n.seq,
					fmt.Sprintf("its row belongs to event %d of run %q", n.rowEvent, n.rowRun)})
			}
		}
		if len(ids) > 0 {
			known, err := states.States(ctx, ids)
			if err != nil {
				return err
			}
			for i, n := range gone {
				switch {
				case known[i] != "":
				case time.Duration(n.age)*time.Microsecond > keep:
					r.Unprovable++
				default:
					r.Add(Finding{EventWithoutCommand, n.id, n.run, n.seq, "there is no row, and the pool has no record of it"})
				}
			}
		}
		if len(page) < auditBatch {
			return nil
		}
		last = page[len(page)-1]
	}
}

func needs(ctx context.Context, db *sql.DB, d Dialect, after need) ([]need, error) {
	found, err := db.QueryContext(ctx, auditEvents.in(d), after.run, after.seq, auditBatch)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var page []need
	for found.Next() {
		var n need
		if err := found.Scan(&n.run, &n.seq, &n.id, &n.age, &n.there, &n.rowRun, &n.rowEvent); err != nil {
			return nil, err
		}
		page = append(page, n)
	}
	return page, found.Err()
}

func (r *Report) auditRows(ctx context.Context, db *sql.DB, d Dialect) error {
	found, err := db.QueryContext(ctx, auditRows.in(d))
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		f := Finding{Kind: RowWithoutEvent, Detail: "the row is traced to an event that does not exist"}
		if err := found.Scan(&f.ID, &f.Run, &f.Event); err != nil {
			return err
		}
		r.Add(f)
	}
	return found.Err()
}

// Published yields the ids of rows that are published and whose receipt was not
// seen yet: the stream or a record must have each of them. It ends with the
// first error.
func Published(ctx context.Context, db *sql.DB, d Dialect) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		r := newRows(db, d, "", 0)
		for after := int64(0); ; {
			seqs, ids, err := r.unsettled(ctx, after, auditBatch)
			if err != nil {
				yield("", fmt.Errorf("outbox: list published rows: %w", err))
				return
			}
			for _, id := range ids {
				if !yield(id, nil) {
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

// Unknown returns those of the given ids that no row has, in their order.
func Unknown(ctx context.Context, db *sql.DB, d Dialect, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil // as in a pool that holds no records yet
	}
	list, err := json.Marshal(ids)
	if err != nil {
		return nil, fmt.Errorf("outbox: look for rows: %w", err)
	}
	found, err := db.QueryContext(ctx, unknownIDs.in(d), string(list))
	if err != nil {
		return nil, fmt.Errorf("outbox: look for rows: %w", err)
	}
	defer found.Close()
	var unknown []string
	for found.Next() {
		var id string
		if err := found.Scan(&id); err != nil {
			return nil, fmt.Errorf("outbox: look for rows: %w", err)
		}
		unknown = append(unknown, id)
	}
	return unknown, found.Err()
}
