//go:build unix

package e2e

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/outbox"
	_ "modernc.org/sqlite"
)

// ledger is the database of a service beside a stand.
type ledger struct {
	*sql.DB
	outbox.Dialect
	dsn string
	t   *testing.T // whose database it is
}

// ledgers runs a test with each kind of database.
func ledgers(t *testing.T, test func(s *stand, db *ledger)) {
	t.Helper()
	for _, d := range []outbox.Dialect{outbox.SQLite, outbox.Postgres} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			db := &ledger{Dialect: d, t: t}
			var driver, source string
			if d == outbox.SQLite {
				path := filepath.Join(t.TempDir(), "app.db")
				driver, source, db.dsn = "sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate", "sqlite:"+path
			} else {
				driver, source = "pgx", pgtest.DSN(t)
				db.dsn = source
			}
			var err error
			if db.DB, err = sql.Open(driver, source); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
			if err := outbox.Migrate(t.Context(), db.DB, d); err != nil {
				t.Fatal(err)
			}
			test(newStand(t, short), db)
		})
	}
}

// add commits n commands of kind "log".
func (db *ledger) add(t *testing.T, prefix string, n int) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	commands := make([]outbox.Command, n)
	for i := range commands {
		id := prefix + strconv.Itoa(i)
		commands[i] = outbox.Command{ID: id, Kind: "log", Payload: []byte(id)}
	}
	if err := errors.Join(outbox.Add(t.Context(), db.Tx(tx), commands...), tx.Commit()); err != nil {
		t.Fatal(err)
	}
}

func (db *ledger) count(t *testing.T, where string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM tallyman_outbox WHERE `+where).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// relay starts a relay process.
func (s *stand) relay(t *testing.T, db *ledger, env ...string) *process {
	t.Helper()
	path, err := producerProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "relay", "--db", db.dsn, "--server", s.url, "--lease", "5s", "--poll", "50ms")
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = appendTo(t, s.path("workers.log"))
	return launch(t, cmd)
}

// all checks that each of n commands came through, with one effect.
func (s *stand) all(t *testing.T, db *ledger, prefix string, n int) {
	t.Helper()
	for i := range n {
		id := prefix + strconv.Itoa(i)
		if r := s.receipt(t, id); string(r.Result) != id {
			t.Errorf("the result of %s is %q", id, r.Result)
		}
		if got := len(s.of(t, "effect", id)); got != 1 {
			t.Errorf("%s has %d effects, want 1", id, got)
		}
	}
	await(t, "all rows to be published", func() bool { return db.count(t, `state <> 'published'`) == 0 })
}

// A relay is killed when the pool has its rows and they are not marked yet. The
// next one submits them again, and the pool absorbs them.
func TestRelay_KilledBetweenPublishAndMark(t *testing.T) {
	t.Parallel()
	ledgers(t, func(s *stand, db *ledger) {
		t := db.t
		s.worker(t)
		db.add(t, "r-", 30)
		dying := s.relay(t, db, s.failAt("after-publish", "r-*"))
		dying.waitEnd(t, "it was to die after a publish")
		if !dying.wasKilled() {
			t.Fatalf("the relay ended with %v, want killed", dying.cmd.ProcessState)
		}
		if got := db.count(t, `state = 'sending'`); got != 30 {
			t.Fatalf("the dead relay left %d rows as being sent, want 30", got)
		}
		s.relay(t, db)
		s.all(t, db, "r-", 30)
		if got := db.count(t, `deliveries = 2 AND taken_from IS NOT NULL`); got != 30 {
			t.Errorf("%d rows were taken over, want 30", got)
		}
		s.settle(t)
		checkBooks(t, s)
	})
}

// A relay is frozen when the pool has its rows and they are not marked yet, and
// thawed beyond its lease: what another took over meanwhile stays the other's.
// (Frozen in the middle of a write to SQLite it would keep everybody from
// writing, which is why this test chooses the point.)
func TestRelay_FrozenAndThawed(t *testing.T) {
	t.Parallel()
	ledgers(t, func(s *stand, db *ledger) {
		t := db.t
		const n = 40
		s.worker(t)
		db.add(t, "r-", n)
		frozen := s.relay(t, db, "TALLYMAN_FAILPOINT=after-publish=stop:r-*:"+s.path("died"))
		await(t, "the relay to freeze", func() bool { return frozen.state(t) == 'T' })
		if got := db.count(t, `state = 'sending'`); got != n {
			t.Fatalf("the frozen relay holds %d rows, want %d", got, n)
		}
		other := s.relay(t, db)
		await(t, "the other relay to publish all", func() bool { return db.count(t, `state = 'published' AND deliveries = 2`) == n })
		frozen.thaw(t)
		await(t, "the thawed relay to be refused", func() bool { return s.logged(t, "rows were taken over while their lease had run out") })
		db.add(t, "late-", 10)
		await(t, "the late rows to be published", func() bool { return db.count(t, `state = 'published'`) == n+10 })
		for _, p := range []*process{frozen, other} {
			if !p.alive() {
				t.Errorf("a relay ended: %v", p.cmd.ProcessState)
			}
		}
		if got := db.count(t, `deliveries = 2 AND taken_from IS NOT NULL`); got != n {
			t.Errorf("%d rows were claimed twice, want %d", got, n)
		}
		s.all(t, db, "late-", 10)
		s.all(t, db, "r-", n)
		s.settle(t)
		checkBooks(t, s)
	})
}

// The server goes away and comes back: the relay catches up by itself.
func TestRelay_ServerAway(t *testing.T) {
	t.Parallel()
	ledgers(t, func(s *stand, db *ledger) {
		t := db.t
		relay := s.relay(t, db)
		db.add(t, "a-", 5)
		await(t, "the first rows to be published", func() bool { return db.count(t, `state = 'published'`) == 5 })
		s.server.kill()
		db.add(t, "b-", 20)
		await(t, "the relay to notice", func() bool { return db.count(t, `state = 'pending' AND deliveries > 0`) > 0 })
		s.restartServer(t)
		await(t, "the relay to catch up", func() bool { return db.count(t, `state = 'published'`) == 25 })
		if got := db.count(t, `attempts > 0`); got != 0 {
			t.Errorf("%d rows have a counted failure, want none", got)
		}
		if !relay.alive() {
			t.Errorf("the relay ended: %v", relay.cmd.ProcessState)
		}
		s.worker(t)
		for i := range 20 {
			s.receipt(t, "b-"+strconv.Itoa(i))
		}
		s.settle(t)
		checkBooks(t, s)
	})
}
