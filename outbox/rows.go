package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// maxError bounds the text of an error that a row keeps, in bytes.
const maxError = 1024

// row is a row that this relay has claimed.
type row struct {
	command.Command
	seq        int64
	deliveries int64
	attempts   int64
	keyed      bool
	takenFrom  string // the relay whose lease had ended, if any
	broken     error  // why the rest could not be read; nil if it was
}

// outcome is what becomes of a claimed row that is not published.
type outcome struct {
	Seq        int64  `json:"s"`
	Deliveries int64  `json:"d"`
	State      string `json:"t"` // pending or failed
	Delay      *int64 `json:"w"` // microseconds until the next try; nil: none
	Attempts   int64  `json:"a"`
	Error      string `json:"e"`
}

// ref names a claimed row together with the token of its claim.
type ref struct {
	Seq        int64 `json:"s"`
	Deliveries int64 `json:"d"`
}

// Every scan reads an index that holds no published row, and is bounded.
const (
	setClaimed = `state = 'sending', owner = $1, taken_from = CASE WHEN state = 'sending' THEN owner END,
		deliveries = deliveries + 1, available_at = {after $2}`
	claimedColumns = `seq, id, kind, queue, content_type, payload, {micros not_after}, order_key IS NOT NULL, deliveries, attempts, taken_from`
)

var (
	// dueExists looks without writing: on SQLite a write that finds nothing
	// to do still makes other writers wait.
	dueExists = statementOf(`SELECT 1 FROM tallyman_outbox WHERE available_at <= {now} AND order_key IS NULL ORDER BY available_at, seq LIMIT 1`)

	claimDue = statementsOf(
		`UPDATE tallyman_outbox SET `+setClaimed+` WHERE seq IN
			(SELECT seq FROM tallyman_outbox WHERE available_at <= {now} AND order_key IS NULL ORDER BY available_at, seq LIMIT $3)
		RETURNING `+claimedColumns,
		`WITH due AS MATERIALIZED (SELECT seq AS s FROM tallyman_outbox WHERE available_at <= now() AND order_key IS NULL
			ORDER BY available_at, seq LIMIT $3 FOR UPDATE SKIP LOCKED)
		UPDATE tallyman_outbox SET `+setClaimed+` FROM due WHERE seq = due.s RETURNING `+claimedColumns)

	// heads walks from key to key, one step of the index for each, and tells
	// the first unpublished row of each key if it is due.
	heads = statementOf(`WITH RECURSIVE keys(k, n) AS (
			SELECT (SELECT order_key FROM tallyman_outbox WHERE order_key > $1 AND published_at IS NULL ORDER BY order_key LIMIT 1), 1
			UNION ALL
			SELECT (SELECT order_key FROM tallyman_outbox WHERE order_key > keys.k AND published_at IS NULL ORDER BY order_key LIMIT 1), n + 1
				FROM keys WHERE k IS NOT NULL AND n < $2)
		SELECT k, (SELECT CASE WHEN available_at <= {now} THEN seq END FROM tallyman_outbox
			WHERE order_key = keys.k AND published_at IS NULL ORDER BY seq LIMIT 1) FROM keys WHERE k IS NOT NULL`)

	claimHeads = statementsOf(
		`UPDATE tallyman_outbox SET `+setClaimed+` WHERE seq IN (SELECT value FROM json_each($3)) AND available_at <= {now}
		RETURNING `+claimedColumns,
		`WITH due AS MATERIALIZED (SELECT seq AS s FROM tallyman_outbox
			WHERE seq IN (SELECT value::bigint FROM json_array_elements_text($3::json)) AND available_at <= now()
			ORDER BY seq FOR UPDATE SKIP LOCKED)
		UPDATE tallyman_outbox SET `+setClaimed+` FROM due WHERE seq = due.s RETURNING `+claimedColumns)

	// Only the holder of the claim may say what became of a row.
	markPublished = statementsOf(
		`UPDATE tallyman_outbox SET state = 'published', published_at = {now}, available_at = NULL, owner = NULL, error = NULL
		FROM (SELECT json_extract(value, '$.s') AS s, json_extract(value, '$.d') AS d FROM json_each($2)) AS x
		WHERE seq = x.s AND deliveries = x.d AND owner = $1 AND state = 'sending'`,
		`UPDATE tallyman_outbox SET state = 'published', published_at = now(), available_at = NULL, owner = NULL, error = NULL
		FROM json_to_recordset($2::json) AS x(s bigint, d bigint)
		WHERE seq = x.s AND deliveries = x.d AND owner = $1 AND state = 'sending'`)

	markReturned = statementsOf(
		`UPDATE tallyman_outbox SET state = x.t, available_at = {now} + x.w, owner = NULL, attempts = x.a, error = nullif(x.e, '')
		FROM (SELECT json_extract(value, '$.s') AS s, json_extract(value, '$.d') AS d, json_extract(value, '$.t') AS t,
			json_extract(value, '$.w') AS w, json_extract(value, '$.a') AS a, json_extract(value, '$.e') AS e FROM json_each($2)) AS x
		WHERE seq = x.s AND deliveries = x.d AND owner = $1 AND state = 'sending'`,
		`UPDATE tallyman_outbox SET state = x.t, available_at = now() + x.w * interval '1 microsecond', owner = NULL, attempts = x.a, error = nullif(x.e, '')
		FROM json_to_recordset($2::json) AS x(s bigint, d bigint, t text, w bigint, a bigint, e text)
		WHERE seq = x.s AND deliveries = x.d AND owner = $1 AND state = 'sending'`)

	// SQLite would rather walk the table, which is in this order too.
	selectUnsettled = statementsOf(
		`SELECT seq, id FROM tallyman_outbox INDEXED BY tallyman_outbox_unsettled
		WHERE published_at IS NOT NULL AND settled_at IS NULL AND seq > $1 ORDER BY seq LIMIT $2`,
		`SELECT seq, id FROM tallyman_outbox
		WHERE published_at IS NOT NULL AND settled_at IS NULL AND seq > $1 ORDER BY seq LIMIT $2`)

	markSettled = statementsOf(
		`UPDATE tallyman_outbox SET receipt = x.r, settled_at = {now}
		FROM (SELECT json_extract(value, '$.s') AS s, json_extract(value, '$.r') AS r FROM json_each($1)) AS x
		WHERE seq = x.s AND state = 'published' AND settled_at IS NULL`,
		`UPDATE tallyman_outbox SET receipt = x.r, settled_at = now() FROM json_to_recordset($1::json) AS x(s bigint, r text)
		WHERE seq = x.s AND state = 'published' AND settled_at IS NULL`)

	removeSettled = statementsOf(
		`DELETE FROM tallyman_outbox WHERE seq IN
			(SELECT seq FROM tallyman_outbox WHERE settled_at < {after $1} ORDER BY settled_at LIMIT $2)`,
		`WITH old AS MATERIALIZED (SELECT seq AS s FROM tallyman_outbox WHERE settled_at < {after $1}
			ORDER BY settled_at LIMIT $2 FOR UPDATE SKIP LOCKED)
		DELETE FROM tallyman_outbox USING old WHERE seq = old.s`)

	countOpen   = statementOf(`SELECT count(*) FROM (SELECT 1 FROM tallyman_outbox WHERE available_at IS NOT NULL LIMIT $1) AS open`)
	countFailed = statementOf(`SELECT count(*) FROM (SELECT 1 FROM tallyman_outbox WHERE state = 'failed' AND available_at IS NULL LIMIT $1) AS failed`)
	oldestOpen  = statementOf(`SELECT {since due_at} FROM tallyman_outbox WHERE available_at IS NOT NULL ORDER BY due_at LIMIT 1`)
)

// rows are the rows of one database as one relay sees them. It is safe for
// concurrent use.
type rows struct {
	db      *sql.DB
	dialect Dialect
	owner   string
	lease   time.Duration
	writing chan struct{} // held while writing to SQLite, which has one writer
}

func newRows(db *sql.DB, d Dialect, owner string, lease time.Duration) *rows {
	return &rows{db: db, dialect: d, owner: owner, lease: lease, writing: make(chan struct{}, 1)}
}

// write waits for its turn, so that the goroutines of a relay do not run into
// each other's "database is locked".
func (r *rows) write(ctx context.Context) (done func(), err error) {
	if r.dialect != SQLite {
		return func() {}, nil
	}
	select {
	case r.writing <- struct{}{}:
		return func() { <-r.writing }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// due claims at most n rows without an order key.
func (r *rows) due(ctx context.Context, n int) ([]row, error) {
	if r.dialect == SQLite {
		var one int
		switch err := r.db.QueryRowContext(ctx, dueExists.in(r.dialect)).Scan(&one); {
		case errors.Is(err, sql.ErrNoRows):
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
	return r.claim(ctx, claimDue, n)
}

// heads tells which rows are the first of their key and due, among the next n
// keys after the given one, and which key was the last that it looked at; it is
// empty at the end of the keys.
func (r *rows) heads(ctx context.Context, after string, n int) (seqs []int64, last string, err error) {
	found, err := r.db.QueryContext(ctx, heads.in(r.dialect), after, n)
	if err != nil {
		return nil, "", err
	}
	defer found.Close()
	seen := 0
	for found.Next() {
		var seq sql.NullInt64
		if err := found.Scan(&last, &seq); err != nil {
			return nil, "", err
		}
		if seen++; seq.Valid {
			seqs = append(seqs, seq.Int64)
		}
	}
	if seen < n {
		last = ""
	}
	return seqs, last, found.Err()
}

// first claims those of the given rows that are still due.
func (r *rows) first(ctx context.Context, seqs []int64) ([]row, error) {
	list, err := json.Marshal(seqs)
	if err != nil {
		return nil, err
	}
	return r.claim(ctx, claimHeads, string(list))
}

// claim runs one of the statements that claim rows, in order of their sequence.
func (r *rows) claim(ctx context.Context, s statement, which any) ([]row, error) {
	done, err := r.write(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	found, err := r.db.QueryContext(ctx, s.in(r.dialect), r.owner, r.lease.Microseconds(), which)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var claimed []row
	for found.Next() {
		var (
			c         row
			notAfter  sql.NullInt64
			takenFrom sql.NullString
		)
		if err := found.Scan(&c.seq, &c.ID, &c.Kind, &c.Queue, &c.ContentType, &c.Payload, &notAfter, &c.keyed, &c.deliveries, &c.attempts, &takenFrom); err != nil {
			// SQLite stores anything in any column. Such a row was written by
			// hand, and must not keep back those that were claimed with it.
			var id, other any
			if found.Scan(&c.seq, &id, &other, &other, &other, &other, &other, &other, &c.deliveries, &other, &other) != nil {
				return claimed, err
			}
			c.broken = fmt.Errorf("%w: the row cannot be read: %w", command.ErrMalformed, err)
			c.Command = command.Command{ID: fmt.Sprint(id)}
			claimed = append(claimed, c)
			continue
		}
		if notAfter.Valid {
			c.NotAfter = time.UnixMicro(notAfter.Int64).UTC()
		}
		c.takenFrom = takenFrom.String
		claimed = append(claimed, c)
	}
	return claimed, found.Err()
}

// mark writes outcomes, one statement for all, and returns how many rows were
// still this relay's.
func (r *rows) mark(ctx context.Context, s statement, args ...any) (int64, error) {
	list, err := json.Marshal(args[len(args)-1])
	if err != nil {
		return 0, err
	}
	args[len(args)-1] = string(list)
	done, err := r.write(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	result, err := r.db.ExecContext(ctx, s.in(r.dialect), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (r *rows) published(ctx context.Context, refs []ref) (int64, error) {
	return r.mark(ctx, markPublished, r.owner, refs)
}

func (r *rows) returned(ctx context.Context, outcomes []outcome) (int64, error) {
	return r.mark(ctx, markReturned, r.owner, outcomes)
}

// settlement says that the final state of a published row's command was seen.
type settlement struct {
	Seq     int64         `json:"s"`
	Receipt kvstate.State `json:"r"`
}

func (r *rows) settled(ctx context.Context, list []settlement) (int64, error) {
	return r.mark(ctx, markSettled, list)
}

// unsettled lists published rows after a sequence whose receipt was not seen yet.
func (r *rows) unsettled(ctx context.Context, after int64, n int) (seqs []int64, ids []string, err error) {
	return pageOf(ctx, r.db, selectUnsettled.in(r.dialect), after, n)
}

// pageOf returns sequence and id of the rows that a query selects, given after
// which sequence to begin, and how many are wanted.
func pageOf(ctx context.Context, db *sql.DB, query string, after int64, n int) (seqs []int64, ids []string, err error) {
	found, err := db.QueryContext(ctx, query, after, n)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close()
	for found.Next() {
		var seq int64
		var id string
		if err := found.Scan(&seq, &id); err != nil {
			return nil, nil, err
		}
		seqs, ids = append(seqs, seq), append(ids, id)
	}
	return seqs, ids, found.Err()
}

// remove deletes at most n rows whose receipt was seen longer ago than keep.
func (r *rows) remove(ctx context.Context, keep time.Duration, n int) (int64, error) {
	done, err := r.write(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	result, err := r.db.ExecContext(ctx, removeSettled.in(r.dialect), -keep.Microseconds(), n)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// errorText is what a row keeps of an error: short, and storable everywhere.
func errorText(err error) string {
	s := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "?")
	if len(s) <= maxError {
		return s
	}
	s = s[:maxError]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
