package outbox_test

import (
	"errors"
	"testing"

	"github.com/tallyman-go/tallyman/outbox"
)

func TestFind(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		find := func(id string) outbox.Status {
			t.Helper()
			s, err := outbox.Find(t.Context(), db.Tx(db.DB), id)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		db.add(t, outbox.Command{ID: "other", Kind: "k", OrderKey: "else"})
		for _, id := range []string{"first", "second", "third"} {
			db.add(t, outbox.Command{ID: id, Kind: "k", OrderKey: "key"})
		}
		db.add(t, outbox.Command{ID: "free", Kind: "k"})
		for id, want := range map[string]string{"other": "", "first": "", "second": "first", "third": "first", "free": ""} {
			if got := find(id); got.ID != id || got.State != "pending" || got.Behind != want || got.Due.IsZero() || got.CreatedAt.IsZero() {
				t.Errorf("got %+v, want %q to be behind %q", got, id, want)
			}
		}
		db.exec(t, `UPDATE tallyman_outbox SET state = 'published', published_at = `+db.past()+`, available_at = NULL WHERE id = 'first'`)
		if got := find("third").Behind; got != "second" {
			t.Errorf("third is behind %q, want second", got)
		}
		if _, err := outbox.Find(t.Context(), db.Tx(db.DB), "nobody"); !errors.Is(err, outbox.ErrNoRow) {
			t.Errorf("got %v, want ErrNoRow", err)
		}
	})
}
