package outbox_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tallyman-go/tallyman/outbox"
)

func TestFailed(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t, d := db.t, db.Dialect
		const many = 1100 // more than one look brings
		var commands []outbox.Command
		for i := range many {
			commands = append(commands, outbox.Command{ID: fmt.Sprintf("c-%04d", i), Kind: "mail"})
		}
		db.add(t, commands...)
		ids := func() (ids []string) {
			t.Helper()
			for s, err := range outbox.Failed(t.Context(), db.DB, d) {
				if err != nil {
					t.Fatal(err)
				}
				if s.State != "failed" || s.Error != "no luck" || s.Attempts != 12 || s.Kind != "mail" || s.CreatedAt.IsZero() {
					t.Fatalf("got %+v", s)
				}
				ids = append(ids, s.ID)
			}
			return ids
		}
		if got := ids(); got != nil {
			t.Errorf("got %v of rows that are pending, want none", got)
		}
		db.exec(t, `UPDATE tallyman_outbox SET state = 'failed', error = 'no luck', attempts = 12`)
		if got := ids(); got != nil {
			t.Errorf("got %v of rows that are tried again, want none", got)
		}
		db.exec(t, `UPDATE tallyman_outbox SET available_at = NULL WHERE id <> 'c-0001'`)
		got := ids()
		if len(got) != many-1 || got[0] != "c-0000" || got[1] != "c-0002" || !slices.IsSorted(got) {
			t.Fatalf("got %d ids, from %v on; want all but c-0001, in order", len(got), got[:2])
		}
		// What is decided while it is listed does not come any more.
		left := 0
		for s, err := range outbox.Failed(t.Context(), db.DB, d) {
			if err != nil {
				t.Fatal(err)
			}
			if left++; left == 1 {
				for _, id := range got[1:] {
					if err := outbox.Discard(t.Context(), d.Tx(db.DB), id); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := outbox.Retry(t.Context(), d.Tx(db.DB), s.ID); err != nil {
				t.Fatal(err)
			}
		}
		if n := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE state = 'pending'`); left != 1 || n != 1 {
			t.Errorf("%d came and %d are pending again, want one", left, n)
		}
	})
}
