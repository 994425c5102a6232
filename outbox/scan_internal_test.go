package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/kvstate"
	_ "modernc.org/sqlite"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want fate
	}{
		{nil, sent},
		{command.ErrConflict, refuse}, {command.ErrTooLarge, refuse}, {command.ErrInvalidID, refuse}, {command.ErrInvalidName, refuse}, {command.ErrMalformed, refuse},
		{command.ErrUnconfirmed, wait}, {command.ErrPoolFull, wait}, {command.ErrNoPool, wait}, {command.ErrUnavailable, wait}, {kvstate.ErrDenied, wait},
		{context.Canceled, wait}, {context.DeadlineExceeded, wait}, {errStopped, wait},
		{errors.New("odd"), retry},
		// What can never succeed wins over the outage that it came with.
		{errors.Join(command.ErrUnconfirmed, command.ErrConflict), refuse},
	} {
		for _, err := range []error{c.err, fmt.Errorf("submit: %w", c.err)} {
			if c.err == nil {
				err = nil
			}
			if got := judge(err); got != c.want {
				t.Errorf("judge(%v) = %d, want %d", err, got, c.want)
			}
		}
	}
}

func TestBackoffOf(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int64]time.Duration{0: 1e9, 1: 1e9, 2: 2e9, 3: 4e9, 4: 8e9, 5: 10e9, 1 << 40: 10e9} {
		if got := backoffOf(attempts, time.Second, 10*time.Second); got != want {
			t.Errorf("backoffOf(%d) = %v, want %v", attempts, got, want)
		}
	}
}

// While the pool is away the pauses grow to a limit; what succeeds ends them.
func TestTroubles(t *testing.T) {
	t.Parallel()
	tr := troubles{pause: newPause()}
	if got := tr.current(); got != 0 {
		t.Errorf("the pause begins with %v, want none", got)
	}
	var sum time.Duration
	for i := range 40 {
		d, first := tr.grow()
		if first != (i == 0) || d <= 0 || d != tr.current() {
			t.Errorf("pause %d is %v (first %t, current %v)", i, d, first, tr.current())
		}
		if i >= 30 && d < pauseMax/2 {
			t.Errorf("pause %d is %v, want about %v", i, d, pauseMax)
		}
		sum += d
	}
	if most := 40 * pauseMax * 3 / 2; sum > most {
		t.Errorf("the pauses add up to %v, want at most %v", sum, most)
	}
	tr.over()
	if got := tr.current(); got != 0 {
		t.Errorf("the pause is %v after a success, want none", got)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "a\x00b\xff": "ab?",
		strings.Repeat("ü", maxError): strings.Repeat("ü", maxError/2), "x" + strings.Repeat("ü", maxError): "x" + strings.Repeat("ü", maxError/2-1),
	} {
		if got := errorText(errors.New(in)); got != want {
			t.Errorf("errorText(%.20q) has %d bytes, want %d", in, len(got), len(want))
		}
	}
}

// scans are the statements that look for rows, with arguments; none may read
// the backlog.
var scans = []struct {
	name  string
	text  statement
	args  []any
	index string // that it must use
}{
	{"due", dueExists, nil, "tallyman_outbox_due"},
	{"claim", claimDue, []any{"me", 1000, 100}, "tallyman_outbox_due"},
	{"heads", heads, []any{"", 100}, "tallyman_outbox_keyed"},
	{"claim heads", claimHeads, []any{"me", 1000, "[1,2,3]"}, ""},
	{"published", markPublished, []any{"me", `[{"s":1,"d":1},{"s":2,"d":1}]`}, ""},
	{"returned", markReturned, []any{"me", `[{"s":1,"d":1,"t":"pending","w":5,"a":0,"e":""}]`}, ""},
	{"unsettled", selectUnsettled, []any{0, 100}, "tallyman_outbox_unsettled"},
	{"settled", markSettled, []any{`[{"s":1,"r":"completed"}]`}, ""},
	{"remove", removeSettled, []any{-1000, 100}, "tallyman_outbox_settled"},
	{"oldest", oldestOpen, nil, "tallyman_outbox_open"},
	{"identity", selectIdentity, []any{"f-1"}, ""},
}

// TestScans_ReadNoBacklog looks at the plans of all statements of a relay
// over 10,000 published rows, 10,000 pending ones and 10,000 with keys.
func TestScans_ReadNoBacklog(t *testing.T) {
	t.Parallel()
	const backlog = 10_000
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		db := backlogOf(t, SQLite, backlog)
		for _, s := range scans {
			plan := planOf(t, db, "EXPLAIN QUERY PLAN "+s.text.in(SQLite), s.args...)
			for line := range strings.Lines(plan) {
				// A scan in the order of its index ends with LIMIT. Others are those of the list that a statement was given.
				if strings.Contains(line, "SCAN tallyman_outbox") && (s.index == "" || !strings.Contains(line, "INDEX "+s.index)) || strings.Contains(line, "TEMP B-TREE") && s.name != "claim heads" {
					t.Errorf("%s reads or sorts the table:\n%s", s.name, plan)
				}
			}
			if !strings.Contains(plan, s.index) {
				t.Errorf("%s does not use %s:\n%s", s.name, s.index, plan)
			}
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		db := backlogOf(t, Postgres, backlog)
		for _, s := range scans {
			plan := planOf(t, db, "EXPLAIN "+s.text.in(Postgres), s.args...)
			if strings.Contains(plan, "Seq Scan on tallyman_outbox") || strings.Contains(plan, "Hash Join") || strings.Contains(plan, "Bitmap") {
				t.Errorf("%s reads the table:\n%s", s.name, plan)
			}
			if !strings.Contains(plan, s.index) {
				t.Errorf("%s does not use %s:\n%s", s.name, s.index, plan)
			}
		}
	})
}

// backlogOf returns a database with so many rows that are published, so many
// that are pending, and so many that are pending and have one of 100 keys.
func backlogOf(t testing.TB, d Dialect, rows int) *sql.DB {
	t.Helper()
	driver, dsn := "sqlite", "file:"+filepath.Join(t.TempDir(), "outbox.db")+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	if d == Postgres {
		driver, dsn = "pgx", pgtest.DSN(t)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
	if err := Migrate(t.Context(), db, d); err != nil {
		t.Fatal(err)
	}
	fill := statementsOf(
		`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
			INSERT INTO tallyman_outbox (id, queue, kind, content_type, payload, digest, order_key, state, available_at, due_at, published_at)
			SELECT $2 || '-' || i, 'default', 'k', '', x'00', '', CASE WHEN $3 > 0 THEN 'key' || (i % $3) END, $4,
				CASE WHEN $4 = 'pending' THEN 1 + i END, 1, CASE WHEN $4 = 'published' THEN 1 END FROM n`,
		`INSERT INTO tallyman_outbox (id, queue, kind, content_type, payload, digest, order_key, state, available_at, due_at, published_at)
			SELECT $2::text || '-' || i, 'default', 'k', '', '\x00', '', CASE WHEN $3::bigint > 0 THEN 'key' || (i % $3::bigint) END, $4::text,
				CASE WHEN $4::text = 'pending' THEN now() - interval '1 hour' + i * interval '1 millisecond' END, now(),
				CASE WHEN $4::text = 'published' THEN now() END FROM generate_series(1, $1::bigint) AS i`)
	for _, part := range []struct {
		prefix string
		keys   int
		state  string
	}{{"p", 0, "published"}, {"f", 0, "pending"}, {"k", 100, "pending"}} {
		if _, err := db.ExecContext(t.Context(), fill.in(d), rows, part.prefix, part.keys, part.state); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
	return db
}

func planOf(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for rows.Next() {
		line := make([]any, len(columns))
		for i := range line {
			line[i] = new(any)
		}
		if err := rows.Scan(line...); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&plan, *line[len(line)-1].(*any))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}
