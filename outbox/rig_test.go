package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/outbox"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}))
}

// silent is where the logs of relays go whose trouble is intended.
var silent = slog.New(slog.DiscardHandler)

// patience bounds every wait; it only ends a broken run.
const patience = 60 * time.Second

// database is one database with the tables in it.
type database struct {
	*sql.DB
	outbox.Dialect
	dsn string
	t   *testing.T // whose database it is
}

// everywhere runs a test on each database: the same suite for all of them.
func everywhere(t *testing.T, test func(db *database)) {
	t.Helper()
	for _, d := range []outbox.Dialect{outbox.SQLite, outbox.Postgres} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, d)
			db.t = t
			test(db)
		})
	}
}

func newDatabase(t testing.TB, d outbox.Dialect) *database {
	t.Helper()
	db := emptyDatabase(t, d)
	if err := outbox.Migrate(t.Context(), db.DB, d); err != nil {
		t.Fatal(err)
	}
	return db
}

// emptyDatabase is one without tables.
func emptyDatabase(t testing.TB, d outbox.Dialect) *database {
	t.Helper()
	driver, dsn := "sqlite", "file:"+filepath.Join(t.TempDir(), "outbox.db")+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"
	if d == outbox.Postgres {
		driver, dsn = "pgx", pgtest.DSN(t)
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
	return &database{DB: db, Dialect: d, dsn: dsn}
}

// within runs f in a transaction, and rolls back if it fails.
func (db *database) within(ctx context.Context, f func(tx outbox.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(db.Tx(tx)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// add adds commands in a transaction of their own.
func (db *database) add(t testing.TB, commands ...outbox.Command) {
	t.Helper()
	if err := db.within(t.Context(), func(tx outbox.Tx) error { return outbox.Add(t.Context(), tx, commands...) }); err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement, with $1 as the first parameter in both dialects.
func (db *database) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// count returns the number that a query yields.
func (db *database) count(t testing.TB, query string, args ...any) int {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (db *database) state(t testing.TB, id string) string {
	t.Helper()
	var s string
	if err := db.QueryRowContext(t.Context(), `SELECT state FROM tallyman_outbox WHERE id = $1`, id).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (db *database) in(t testing.TB, state string) int {
	t.Helper()
	return db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE state = $1`, state)
}

// past spells a time that is over, for a column of times.
func (db *database) past() string {
	if db.Dialect == outbox.SQLite {
		return "1"
	}
	return "'2000-01-01'"
}

// expire ends the lease of every row that is being sent.
func (db *database) expire(t testing.TB) {
	t.Helper()
	db.exec(t, `UPDATE tallyman_outbox SET available_at = `+db.past()+` WHERE state = 'sending'`)
}

// pool is a pool in memory: it accepts each id once, absorbs repeats, reports
// conflicts, and fails as it is told to.
type pool struct {
	mu       sync.Mutex
	digests  map[string]command.Digest
	accepted []string // ids in the order in which they were accepted
	tries    int      // submissions, whatever became of them
	absorbed int
	states   map[string]kvstate.State
	commands map[string]command.Command
	// refuse, if set, decides about a submission before anything else.
	refuse func(c command.Command) error
	// hold, if set, is waited for after the pool has decided, before the relay hears of it.
	hold chan struct{}
	work sync.WaitGroup
}

func newPool() *pool {
	return &pool{digests: map[string]command.Digest{}, states: map[string]kvstate.State{}, commands: map[string]command.Command{}}
}

func (p *pool) SubmitAsync(ctx context.Context, c command.Command, done func(error)) error {
	env, err := dedupe.Identify(c)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries++
	var outcome error
	if p.refuse != nil {
		outcome = p.refuse(c)
	}
	if outcome == nil {
		switch had, ok := p.digests[c.ID]; {
		case !ok:
			p.digests[c.ID], p.commands[c.ID] = env.Digest, c
			p.accepted = append(p.accepted, c.ID)
		case had != env.Digest:
			outcome = fmt.Errorf("submit %q: %w", c.ID, command.ErrConflict)
		default:
			p.absorbed++
		}
	}
	hold := p.hold
	p.work.Go(func() {
		if hold != nil {
			select {
			case <-hold:
			case <-ctx.Done():
				outcome = fmt.Errorf("submit %q: %w: %w", c.ID, command.ErrUnconfirmed, context.Cause(ctx))
			}
		}
		done(outcome)
	})
	return nil
}

func (p *pool) States(_ context.Context, ids []string) ([]kvstate.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := make([]kvstate.State, len(ids))
	for i, id := range ids {
		states[i] = p.states[id]
	}
	return states, nil
}

// set changes the pool.
func (p *pool) set(change func(*pool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *pool) ids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.accepted)
}

// relay is a relay that runs.
type relay struct {
	*outbox.Relay
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // read it after ended
}

// start starts a relay with short times, which change may change. It ends with the test.
func (db *database) start(t testing.TB, p *pool, change ...func(*outbox.Config)) *relay {
	t.Helper()
	cfg := outbox.Config{
		DB: db.DB, Dialect: db.Dialect, Submitter: p, States: p, Logger: silent,
		Poll: 25 * time.Millisecond, Sweep: time.Hour, BackoffMin: time.Millisecond, BackoffMax: 10 * time.Millisecond,
	}
	for _, c := range change {
		c(&cfg)
	}
	r, err := outbox.NewRelay(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	run := &relay{Relay: r, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(run.ended)
		run.err = r.Run(ctx)
	}()
	t.Cleanup(func() {
		run.stop(t)
		p.work.Wait()
	})
	return run
}

func (r *relay) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	select {
	case <-r.ended:
		if r.err != nil {
			t.Errorf("the relay ended with %v", r.err)
		}
	case <-time.After(patience):
		t.Fatal("the relay does not stop")
	}
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	bound := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-bound:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// numbered makes n commands.
func numbered(n int) []outbox.Command {
	commands := make([]outbox.Command, n)
	for i := range commands {
		commands[i] = outbox.Command{ID: fmt.Sprintf("c-%06d", i), Kind: "resize", Payload: fmt.Appendf(nil, `{"n":%d}`, i)}
	}
	return commands
}
