package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/outbox"
)

func claim(id string, token uint64) *tallyman.Claim {
	return tallyman.Detached(tallyman.DetachedConfig{Command: tallyman.Command{ID: id, Kind: "k"}, Token: token})
}

// once runs Once in a transaction; what it does to the books is one row more.
func (db *database) once(ctx context.Context, c outbox.Claim, result string, fail error) (got string, repeated bool, err error) {
	err = db.within(ctx, func(tx outbox.Tx) error {
		var body []byte
		body, repeated, err = outbox.Once(ctx, tx, c, func(ctx context.Context) ([]byte, error) {
			if _, err := tx.Exec(ctx, `INSERT INTO ledger (what) VALUES ('`+result+`')`); err != nil {
				return nil, err
			}
			return []byte(result), fail
		})
		got = string(body)
		return err
	})
	return got, repeated, err
}

func TestOnce(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		ctx := t.Context()
		db.exec(t, `CREATE TABLE ledger (what text NOT NULL)`)
		ledger := func() int { return db.count(t, `SELECT count(*) FROM ledger`) }

		boom := errors.New("boom")
		if _, _, err := db.once(ctx, claim("a", 0), "first", boom); !errors.Is(err, boom) {
			t.Fatalf("got %v, want the handler's error", err)
		}
		if rows, entries := ledger(), db.count(t, `SELECT count(*) FROM tallyman_inbox`); rows != 0 || entries != 0 {
			t.Fatalf("after the error there are %d rows and %d entries, want none", rows, entries)
		}
		if got, repeated, err := db.once(ctx, claim("a", 0), "second", nil); err != nil || repeated || got != "second" {
			t.Fatalf("got %q, %t, %v", got, repeated, err)
		}
		// A takeover comes with a higher token, and finds the work done.
		if got, repeated, err := db.once(ctx, claim("a", 7), "third", nil); err != nil || !repeated || got != "second" {
			t.Errorf("repeated delivery: got %q, %t, %v; want the stored result", got, repeated, err)
		}
		if got := ledger(); got != 1 {
			t.Errorf("the business was done %d times, want once", got)
		}

		// Token 9 has been here, so 8 and 0 come too late, done or not.
		if err := db.within(ctx, func(tx outbox.Tx) error {
			return outbox.Advance(ctx, tx, claim("b", 9), 0, 10, func(context.Context) error { return nil })
		}); err != nil {
			t.Fatal(err)
		}
		for _, token := range []uint64{0, 8} {
			if _, _, err := db.once(ctx, claim("b", token), "stale", nil); !errors.Is(err, tallyman.ErrLeaseLost) {
				t.Errorf("token %d: got %v, want ErrLeaseLost", token, err)
			}
		}
		if _, _, err := db.once(ctx, claim("b", 10), "fresh", nil); err != nil {
			t.Error(err)
		}
		if _, _, err := db.once(ctx, claim("b", 9), "stale", nil); !errors.Is(err, tallyman.ErrLeaseLost) {
			t.Errorf("token 9 after 10: got %v, want ErrLeaseLost", err)
		}
		if got := ledger(); got != 2 {
			t.Errorf("the business was done %d times, want twice", got)
		}

		var empty []byte
		for range 2 {
			if err := db.within(ctx, func(tx outbox.Tx) error {
				var err error
				empty, _, err = outbox.Once(ctx, tx, claim("none", 0), func(context.Context) ([]byte, error) { return nil, nil })
				return err
			}); err != nil || len(empty) != 0 {
				t.Errorf("a result of nothing: got %q, %v", empty, err)
			}
		}

		if err := db.within(ctx, func(tx outbox.Tx) error {
			if n, err := outbox.Forget(ctx, tx, time.Hour, 100); err != nil || n != 0 {
				t.Errorf("forgot %d entries within the time (%v), want none", n, err)
			}
			n, err := outbox.Forget(ctx, tx, -time.Hour, 2)
			if n != 2 {
				t.Errorf("forgot %d entries, want the limit of 2", n)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}

// Two holders of one command meet: one of them does the work, the other gets its result or is refused.
func TestOnce_Concurrently(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		db.exec(t, `CREATE TABLE ledger (what text NOT NULL)`)
		var group sync.WaitGroup
		for token := range uint64(8) {
			group.Go(func() {
				if _, _, err := db.once(t.Context(), claim("a", token), "x", nil); err != nil && !errors.Is(err, tallyman.ErrLeaseLost) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if got := db.count(t, `SELECT count(*) FROM ledger`); got != 1 {
			t.Errorf("the business was done %d times, want once", got)
		}
	})
}

func TestAdvance(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		ctx := t.Context()
		db.exec(t, `CREATE TABLE ledger (what text NOT NULL)`)
		step := func(token, from, to uint64, fail error) error {
			return db.within(ctx, func(tx outbox.Tx) error {
				return outbox.Advance(ctx, tx, claim("a", token), from, to, func(ctx context.Context) error {
					if _, err := tx.Exec(ctx, `INSERT INTO ledger (what) VALUES ('batch')`); err != nil {
						return err
					}
					return fail
				})
			})
		}
		offset := func(token uint64) (at uint64, err error) {
			err = db.within(ctx, func(tx outbox.Tx) error {
				at, err = outbox.Offset(ctx, tx, claim("a", token))
				return err
			})
			return at, err
		}
		if at, err := offset(0); at != 0 || err != nil {
			t.Errorf("offset of a command that was never here: %d, %v", at, err)
		}
		boom := errors.New("boom")
		for _, c := range []struct {
			name            string
			token, from, to uint64
			fail, want      error
		}{
			{"the first batch fails", 0, 0, 10, boom, boom},
			{"the first batch", 0, 0, 10, nil, nil},
			{"the first batch again", 0, 0, 10, nil, outbox.ErrMoved},
			{"the second batch, by a takeover", 5, 10, 20, nil, nil},
			{"the third batch, by the former holder", 0, 20, 30, nil, tallyman.ErrLeaseLost},
			{"a batch that is left out", 5, 30, 40, nil, outbox.ErrMoved},
			{"a batch that goes back", 5, 20, 10, nil, outbox.ErrBackwards},
			{"the third batch", 5, 20, 30, nil, nil},
		} {
			if err := step(c.token, c.from, c.to, c.fail); !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
		}
		if at, err := offset(5); at != 30 || err != nil {
			t.Errorf("offset = %d, %v; want 30", at, err)
		}
		if _, err := offset(4); !errors.Is(err, tallyman.ErrLeaseLost) {
			t.Errorf("offset for a stale token: got %v, want ErrLeaseLost", err)
		}
		if got := db.count(t, `SELECT count(*) FROM ledger`); got != 3 {
			t.Errorf("%d batches were booked, want 3", got)
		}
		if !errors.Is(outbox.ErrMoved, tallyman.ErrLeaseLost) {
			t.Error("ErrMoved does not make a worker abandon the command")
		}
		if _, _, err := db.once(ctx, claim("a", 5), "done", nil); err != nil {
			t.Fatal(err)
		}
		if err := step(5, 30, 40, nil); !errors.Is(err, outbox.ErrMoved) {
			t.Errorf("a batch after the end: got %v, want ErrMoved", err)
		}
	})
}
