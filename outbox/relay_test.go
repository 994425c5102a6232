package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/outbox"
)

// Many relays share the work: each command is accepted once, and nobody's mark is refused.
func TestRelay_ManySideBySide(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		const n = 600
		p := newPool()
		var relays []*relay
		for range 3 {
			relays = append(relays, db.start(t, p, func(c *outbox.Config) { c.Batch = 40 }))
		}
		for part := range slices.Chunk(numbered(n), 50) {
			db.add(t, part...)
		}
		eventually(t, "all to be published", func() bool { return db.in(t, "published") == n })
		var published, takenOver, refused int64
		for _, r := range relays {
			r.stop(t)
			s := r.Stats()
			published, takenOver, refused = published+s.Published, takenOver+s.TakenOver, refused+s.Refused
		}
		if ids := p.ids(); len(ids) != n || p.tries != n {
			t.Errorf("%d commands accepted in %d submissions, want %d in %d", len(ids), p.tries, n, n)
		}
		if published != n || takenOver != 0 || refused != 0 {
			t.Errorf("published %d, taken over %d, refused %d; want %d, 0, 0", published, takenOver, refused, n)
		}
	})
}

// A sequence that was drawn early and commits late is sent all the same: there
// is no cursor that could have passed it. SQLite has one writer, so that there
// sequences are drawn in the order of commits.
func TestRelay_ReverseCommit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, outbox.Postgres)
	p := newPool()
	db.start(t, p)
	early, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Add(t.Context(), db.Tx(early), outbox.Command{ID: "early", Kind: "k", OrderKey: "key"}, outbox.Command{ID: "early too", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	db.add(t, outbox.Command{ID: "late", Kind: "k", OrderKey: "key"}, outbox.Command{ID: "late too", Kind: "k"})
	eventually(t, "the later sequence to be published", func() bool { return db.in(t, "published") == 2 })
	if got := p.ids(); slices.Contains(got, "early") || slices.Contains(got, "early too") {
		t.Fatalf("accepted %q before the commit", got)
	}
	if err := early.Commit(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the earlier sequence to be published", func() bool { return db.in(t, "published") == 4 })
	if first, second := db.count(t, `SELECT seq FROM tallyman_outbox WHERE id = 'early'`), db.count(t, `SELECT seq FROM tallyman_outbox WHERE id = 'late'`); first >= second {
		t.Errorf("the sequences %d and %d are not in the order that this test is about", first, second)
	}
}

// A relay that was frozen beyond its lease wakes up, and may not confirm what
// another has taken over meanwhile.
func TestRelay_FrozenBeyondItsLease(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		answers := make(chan struct{})
		p.hold = answers
		link := cut(t, db)
		db.add(t, numbered(5)...)
		frozen := db.start(t, p, func(c *outbox.Config) { c.Owner, c.DB, c.Lease = "frozen", link.db, time.Hour })
		eventually(t, "the first relay to submit", func() bool { return len(p.ids()) == 5 })
		thaw := sync.OnceFunc(link.freeze())
		t.Cleanup(thaw)

		p.set(func(p *pool) { p.hold = nil })
		db.expire(t)
		other := db.start(t, p, func(c *outbox.Config) { c.Owner = "other" })
		eventually(t, "the second relay to publish", func() bool { return other.Stats().Published == 5 })
		before := db.count(t, `SELECT sum(deliveries) FROM tallyman_outbox WHERE state = 'published' AND taken_from = 'frozen'`)
		thaw()
		close(answers)
		eventually(t, "the first relay to be refused", func() bool { return frozen.Stats().Refused == 5 })
		if got := frozen.Stats().Published; got != 0 {
			t.Errorf("the frozen relay says that it published %d rows, want none", got)
		}
		if got := other.Stats().TakenOver; got != 5 {
			t.Errorf("%d rows were taken over, want 5", got)
		}
		after := db.count(t, `SELECT sum(deliveries) FROM tallyman_outbox WHERE state = 'published' AND taken_from = 'frozen'`)
		if before != 10 || after != 10 {
			t.Errorf("the rows were claimed %d and then %d times, want 10 both times", before, after)
		}
		if len(p.ids()) != 5 || p.absorbed != 5 {
			t.Errorf("%d accepted and %d absorbed, want 5 and 5", len(p.ids()), p.absorbed)
		}
	})
}

// The holder of an older claim on the same row may not say what became of it, even under its own name.
func TestRelay_ClaimsAreFencedByTheirNumber(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]error{"accepted": nil, "refused": command.ErrTooLarge} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, func(db *database) {
				t := db.t
				p := newPool()
				thaw := make(chan struct{})
				p.hold = thaw
				p.refuse = func(command.Command) error { return outcome }
				tries := func() (n int) {
					p.set(func(p *pool) { n = p.tries })
					return n
				}
				db.add(t, numbered(1)...)
				first := db.start(t, p, func(c *outbox.Config) { c.Owner = "same"; c.Lease = time.Hour })
				eventually(t, "the first submission", func() bool { return tries() == 1 })
				db.expire(t)
				// The second claim is held too, so the row is "sending" by "same" either way.
				still := make(chan struct{})
				p.set(func(p *pool) { p.hold, p.refuse = still, nil })
				second := db.start(t, p, func(c *outbox.Config) { c.Owner = "same"; c.Lease = time.Hour })
				eventually(t, "the second claim", func() bool { return tries() == 2 })
				close(thaw)
				eventually(t, "the first to have marked, or not", func() bool {
					return first.Stats().Refused+second.Stats().Refused == 1 || db.state(t, "c-000000") != "sending"
				})
				got := db.state(t, "c-000000")
				close(still)
				if got != "sending" {
					t.Fatalf("the row is %s, want sending", got)
				}
				eventually(t, "the row to be published", func() bool { return db.in(t, "published") == 1 })
			})
		})
	}
}

// A relay dies between the publish and the mark: another one publishes again
// after the lease, and the pool absorbs it.
func TestRelay_DiesBeforeTheMark(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		link := cut(t, db)
		submitted := make(chan struct{})
		var once atomic.Bool
		p.refuse = func(command.Command) error {
			if once.CompareAndSwap(false, true) {
				link.down.Store(true) // whatever it wants to write from now on is lost
				close(submitted)
			}
			return nil
		}
		db.add(t, numbered(20)...)
		dying := db.start(t, p, func(c *outbox.Config) { c.DB = link.db; c.Lease = 5 * time.Second }) // longer it does not submit
		t.Cleanup(func() { link.down.Store(false) })                                                  // or its end would take long
		<-submitted
		eventually(t, "all to be submitted", func() bool { return len(p.ids()) == 20 })
		dying.cancel()
		if got := db.in(t, "sending"); got != 20 {
			t.Fatalf("%d rows are left unmarked, want 20", got)
		}
		heir := db.start(t, p)
		eventually(t, "all to be published", func() bool { return db.in(t, "published") == 20 })
		if got := heir.Stats().TakenOver; got != 20 {
			t.Errorf("%d rows were taken over, want 20", got)
		}
		if len(p.ids()) != 20 || p.absorbed != 20 {
			t.Errorf("%d accepted and %d absorbed, want 20 and 20", len(p.ids()), p.absorbed)
		}
	})
}

func TestRelay_DatabaseAway(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		link := cut(t, db)
		db.start(t, p, func(c *outbox.Config) { c.DB = link.db; c.Lease = time.Second })
		db.add(t, numbered(10)...)
		eventually(t, "the first rows to be published", func() bool { return db.in(t, "published") == 10 })
		link.down.Store(true)
		before := link.refused.Load()
		db.add(t, outbox.Command{ID: "meanwhile", Kind: "k"})
		eventually(t, "some tries in vain", func() bool { return link.refused.Load() > before+4 })
		if got := db.state(t, "meanwhile"); got != "pending" {
			t.Errorf("the row is %s, want pending", got)
		}
		link.down.Store(false)
		eventually(t, "the relay to catch up", func() bool { return db.in(t, "published") == 11 })
		if len(p.ids()) != 11 {
			t.Errorf("%d commands accepted, want 11", len(p.ids()))
		}
	})
}

// While no server answers, rows stay as they are, whatever happens: no try is
// counted, and the relay leaves ever longer pauses.
func TestRelay_PoolAway(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]error{
		"no server answers": command.ErrUnconfirmed, "the pool is full": command.ErrPoolFull,
		"JetStream is off": command.ErrUnavailable, "the pool does not exist": command.ErrNoPool,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, func(db *database) {
				t := db.t
				p := newPool()
				p.refuse = func(command.Command) error { return fmt.Errorf("submit: %w", outage) }
				r := db.start(t, p, func(c *outbox.Config) { c.Attempts = 1 })
				db.add(t, numbered(30)...)
				eventually(t, "rows to be put back a few times", func() bool { return r.Stats().Returned >= 60 })
				if got := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE state IN ('pending', 'sending') AND attempts = 0`); got != 30 {
					t.Errorf("%d rows wait without a counted try, want 30", got)
				}
				if got := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE error LIKE '%submit: %'`); got == 0 {
					t.Error("no row tells why it waits")
				}
				p.set(func(p *pool) { p.refuse = nil })
				eventually(t, "the relay to catch up", func() bool { return db.in(t, "published") == 30 })
				if len(p.ids()) != 30 {
					t.Errorf("%d commands accepted, want 30", len(p.ids()))
				}
			})
		})
	}
}

func TestRelay_FailsWhatCannotSucceed(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		conflict := fmt.Errorf("submit %q: %w", "bad", command.ErrConflict)
		odd := errors.New("its record is damaged\x00\xff")
		tries := map[string]int{}
		p.refuse = func(c command.Command) error {
			tries[c.ID]++
			switch c.ID {
			case "bad":
				return conflict
			case "large":
				return fmt.Errorf("submit: %w", command.ErrTooLarge)
			case "odd":
				return odd
			case "shaky":
				if tries[c.ID] < 3 {
					return odd
				}
			}
			return nil
		}
		r := db.start(t, p, func(c *outbox.Config) { c.Attempts = 4 })
		for _, id := range []string{"bad", "large", "odd", "shaky", "good"} {
			db.add(t, outbox.Command{ID: id, Kind: "k"})
		}
		eventually(t, "every row to have its end", func() bool {
			return db.in(t, "published") == 2 && db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE state = 'failed' AND available_at IS NULL`) == 3
		})
		p.set(func(*pool) {
			for id, want := range map[string]int{"bad": 1, "large": 1, "odd": 4, "shaky": 3, "good": 1} {
				if tries[id] != want {
					t.Errorf("%s was submitted %d times, want %d", id, tries[id], want)
				}
			}
		})
		var text string
		if err := db.QueryRowContext(t.Context(), `SELECT error FROM tallyman_outbox WHERE id = 'bad' AND attempts = 1`).Scan(&text); err != nil || text != conflict.Error() {
			t.Errorf("the row says %q (%v), want %q", text, err, conflict)
		}
		if got := r.Stats(); got.Failed != 3 || got.Retried != 3+2 {
			t.Errorf("stats %+v, want 3 failed and 5 retried", got)
		}
		eventually(t, "the sample to show them", func() bool {
			s := r.Stats()
			return !s.SampledAt.IsZero()
		})

		t.Run("until an operator says otherwise", func(t *testing.T) {
			ctx := t.Context()
			p.set(func(p *pool) { p.refuse = nil })
			act := func(f func(outbox.Tx) error) error { return db.within(ctx, f) }
			if err := act(func(tx outbox.Tx) error { return outbox.Retry(ctx, tx, "odd") }); err != nil {
				t.Fatal(err)
			}
			if err := act(func(tx outbox.Tx) error { return outbox.Discard(ctx, tx, "large") }); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the row to be published", func() bool { return db.state(t, "odd") == "published" })
			for _, id := range []string{"good", "large", "unknown"} {
				if err := act(func(tx outbox.Tx) error { return outbox.Retry(ctx, tx, id) }); !errors.Is(err, outbox.ErrNoRow) || !strings.Contains(err.Error(), id) {
					t.Errorf("retry of %s: got %v, want ErrNoRow", id, err)
				}
				if err := act(func(tx outbox.Tx) error { return outbox.Discard(ctx, tx, id) }); !errors.Is(err, outbox.ErrNoRow) {
					t.Errorf("discard of %s: got %v, want ErrNoRow", id, err)
				}
			}
		})
	})
}

func TestRelay_WaitsUntilNotBefore(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		accepted := map[string]time.Time{}
		p.refuse = func(c command.Command) error { accepted[c.ID] = time.Now(); return nil }
		db.start(t, p)
		due := time.Now().Add(300 * time.Millisecond)
		db.add(t, outbox.Command{ID: "later", Kind: "k", NotBefore: due}, outbox.Command{ID: "later keyed", Kind: "k", OrderKey: "x", NotBefore: due},
			outbox.Command{ID: "much later", Kind: "k", NotBefore: time.Now().Add(time.Hour)}, outbox.Command{ID: "now", Kind: "k"})
		eventually(t, "what is due", func() bool { return db.in(t, "published") == 3 })
		p.set(func(*pool) {
			for _, id := range []string{"later", "later keyed"} {
				// The database's clock has milliseconds, SQLite's at least.
				if at := accepted[id]; at.Before(due.Add(-2 * time.Millisecond)) {
					t.Errorf("%s was submitted %v early", id, due.Sub(at))
				}
			}
		})
		if got := db.state(t, "much later"); got != "pending" {
			t.Errorf("the last row is %s, want pending", got)
		}
	})
}

// What was claimed and not confirmed when a relay stops is another's at once.
func TestRelay_HandsBackWhenItStops(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		p.hold = make(chan struct{}) // never answers
		db.add(t, numbered(10)...)
		r := db.start(t, p, func(c *outbox.Config) { c.Lease = time.Hour; c.Drain = 20 * time.Millisecond })
		eventually(t, "all to be submitted", func() bool { return len(p.ids()) == 10 })
		r.stop(t)
		if got := db.in(t, "pending"); got != 10 {
			t.Fatalf("%d rows are pending, want 10", got)
		}
		p.set(func(p *pool) { p.hold = nil })
		db.start(t, p)
		eventually(t, "all to be published", func() bool { return db.in(t, "published") == 10 })
	})
}

func TestRelay_OneLateAnswerHoldsUpNobody(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		late := make(chan struct{})
		p.refuse = func(c command.Command) error {
			if p.hold = nil; c.ID == "c-000003" {
				p.hold = late
			}
			return nil
		}
		db.add(t, numbered(10)...)
		db.start(t, p)
		eventually(t, "the others to be marked", func() bool { return db.in(t, "published") == 9 })
		db.add(t, outbox.Command{ID: "next", Kind: "k"})
		eventually(t, "the next batch", func() bool { return db.state(t, "next") == "published" })
		close(late)
		eventually(t, "the late one", func() bool { return db.in(t, "published") == 11 })
	})
}

// A row is removed only once it is published, its receipt was seen, and the
// retention has passed since.
func TestRelay_Sweep(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		p.refuse = func(c command.Command) error {
			if c.ID == "bad" {
				return command.ErrConflict
			}
			return nil
		}
		often := func(c *outbox.Config) { c.Sweep = 20 * time.Millisecond }
		keep := db.start(t, p, often)
		for _, id := range []string{"done", "cancelled", "parked", "running", "unknown", "bad"} {
			db.add(t, outbox.Command{ID: id, Kind: "k"})
		}
		p.set(func(p *pool) {
			p.states["done"], p.states["cancelled"], p.states["parked"], p.states["running"], p.states["bad"] = "completed", "cancelled", "parked", "claimed", "completed"
		})
		eventually(t, "receipts to be noted", func() bool { return keep.Stats().Settled == 2 })
		if got := db.count(t, `SELECT count(*) FROM tallyman_outbox`); got != 6 {
			t.Errorf("%d rows are left within the retention, want 6", got)
		}
		var receipt string
		if err := db.QueryRowContext(t.Context(), `SELECT receipt FROM tallyman_outbox WHERE id = 'done'`).Scan(&receipt); err != nil || receipt != "completed" {
			t.Errorf("the row says %q (%v), want completed", receipt, err)
		}
		keep.stop(t)
		short := db.start(t, p, often, func(c *outbox.Config) { c.Retention = time.Millisecond })
		eventually(t, "what is done to be removed", func() bool { return db.count(t, `SELECT count(*) FROM tallyman_outbox`) == 4 })
		p.set(func(p *pool) { p.states["running"] = "completed" })
		eventually(t, "the one that finished to be removed", func() bool { return short.Stats().Removed == 3 })
		for id, want := range map[string]string{"parked": "published", "unknown": "published", "bad": "failed"} {
			if got := db.state(t, id); got != want {
				t.Errorf("%s is %s, want %s", id, got, want)
			}
		}
	})
}
