package outbox_test

import (
	"testing"

	"github.com/tallyman-go/tallyman/outbox"
)

// A row that somebody wrote by hand, and that cannot be read, fails by itself:
// what was claimed with it goes on.
func TestRelay_RowsMadeByHand(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		p := newPool()
		db.add(t, numbered(20)...)
		db.add(t, outbox.Command{ID: "by hand", Kind: "k"}, outbox.Command{ID: "keyed by hand", Kind: "k", OrderKey: "key"}, outbox.Command{ID: "other key", Kind: "k", OrderKey: "other"})
		if db.Dialect == outbox.SQLite {
			db.exec(t, `UPDATE tallyman_outbox SET not_after = 'tomorrow' WHERE id LIKE '%by hand'`)
		} else {
			db.exec(t, `UPDATE tallyman_outbox SET not_after = 'infinity' WHERE id LIKE '%by hand'`)
		}
		db.start(t, p)
		eventually(t, "all to have an end", func() bool { return db.in(t, "published")+db.in(t, "failed") == 23 })
		want := "failed"
		if db.Dialect == outbox.Postgres {
			want = "published" // that it may start at any time is no nonsense
		}
		for _, id := range []string{"by hand", "keyed by hand"} {
			if got := db.state(t, id); got != want {
				t.Errorf("%q is %s, want %s", id, got, want)
			}
		}
		if n := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE error LIKE '%cannot be read%' AND available_at IS NULL`); want == "failed" && n != 2 {
			t.Errorf("%d rows say that they cannot be read, want 2", n)
		}
		if got := db.state(t, "other key"); got != "published" {
			t.Errorf("another key is %s, want published", got)
		}
	})
}
