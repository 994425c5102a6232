package outbox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/outbox"
)

// Rows of one key are accepted in the order of their sequence, with several
// relays at work and with failures on the way; rows of other keys overtake them.
func TestRelay_KeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		const keys, each = 7, 15
		p := newPool()
		n := 0
		p.refuse = func(c command.Command) error {
			if n++; n%5 == 0 {
				return fmt.Errorf("odd") // tried again after a pause, in which others of its key must wait
			}
			return nil
		}
		for range 3 {
			db.start(t, p, func(c *outbox.Config) { c.Batch, c.Attempts = 3, 1000 })
		}
		for i := range each {
			var commands []outbox.Command
			for k := range keys {
				commands = append(commands, outbox.Command{ID: fmt.Sprintf("k%d-%03d", k, i), Kind: "k", OrderKey: fmt.Sprint("k", k)})
			}
			db.add(t, append(commands, outbox.Command{ID: fmt.Sprintf("free-%03d", i), Kind: "k"})...)
		}
		eventually(t, "all to be published", func() bool { return db.in(t, "published") == (keys+1)*each })
		of := map[string][]string{}
		for _, id := range p.ids() {
			key, _, _ := strings.Cut(id, "-")
			of[key] = append(of[key], id)
		}
		for k := range keys {
			got := of[fmt.Sprint("k", k)]
			if len(got) != each || !slices.IsSorted(got) {
				t.Errorf("key %d was accepted in the order %q", k, got)
			}
		}
	})
}

// A row that failed for good holds up its key, and no other, until an operator decides.
func TestRelay_AFailedRowHoldsUpItsKey(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		p.refuse = func(c command.Command) error {
			if c.ID == "a1" {
				return command.ErrTooLarge
			}
			return nil
		}
		db.start(t, p)
		db.add(t, outbox.Command{ID: "a1", Kind: "k", OrderKey: "a"}, outbox.Command{ID: "a2", Kind: "k", OrderKey: "a"})
		eventually(t, "the first row to fail", func() bool { return db.in(t, "failed") == 1 })
		db.add(t, outbox.Command{ID: "b1", Kind: "k", OrderKey: "b"}, outbox.Command{ID: "free", Kind: "k"})
		eventually(t, "the others to be published", func() bool { return db.in(t, "published") == 2 })
		if got := db.state(t, "a2"); got != "pending" {
			t.Errorf("the second row of the key is %s, want pending", got)
		}
		if err := db.within(t.Context(), func(tx outbox.Tx) error { return outbox.Discard(t.Context(), tx, "a1") }); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the key to go on", func() bool { return db.state(t, "a2") == "published" })
	})
}

// Keys that are held up, more of them than one look takes in, do not hide the others.
func TestRelay_WalksPastKeysThatAreHeldUp(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		var commands []outbox.Command
		for i := range 400 {
			commands = append(commands, outbox.Command{ID: fmt.Sprintf("h%03d", i), Kind: "k", OrderKey: fmt.Sprintf("k%03d", i)})
		}
		db.add(t, commands...)
		db.exec(t, `UPDATE tallyman_outbox SET state = 'failed', available_at = NULL`)
		p := newPool()
		db.start(t, p, func(c *outbox.Config) { c.Batch = 10 }) // 80 keys in one look
		db.add(t, outbox.Command{ID: "first", Kind: "k", OrderKey: "a"}, outbox.Command{ID: "last", Kind: "k", OrderKey: "z"},
			outbox.Command{ID: "between", Kind: "k", OrderKey: "k200x"})
		eventually(t, "the three to be published", func() bool { return db.in(t, "published") == 3 })
	})
}
