package outbox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/outbox"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		ctx := t.Context()
		p := newPool()
		decide := func(run string, expected uint64, ids ...string) {
			t.Helper()
			var events []outbox.Event
			var commands []outbox.Command
			for _, id := range ids {
				events = append(events, outbox.Event{Kind: "k", CommandID: id})
				commands = append(commands, outbox.Command{ID: id, Kind: "k"})
			}
			if err := db.within(ctx, func(tx outbox.Tx) error { return outbox.CommitDecision(ctx, tx, run, expected, events, commands) }); err != nil {
				t.Fatal(err)
			}
		}
		audit := func() outbox.Report {
			t.Helper()
			r, err := outbox.Audit(ctx, db.DB, db.Dialect, p, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		// More than a page of them, so that the walk has to turn it.
		var many []string
		for _, c := range numbered(1500) {
			many = append(many, c.ID)
		}
		decide("many", 0, many...)
		decide("trip-1", 0, "a", "b", "c", "d")
		db.add(t, outbox.Command{ID: "free", Kind: "k"})
		if r := audit(); !r.Balanced || r.Events != 1504 || r.Rows["pending"] != 1505 || len(r.Findings) != 0 {
			t.Fatalf("sound books: %+v", r)
		}

		// "a" was removed after its receipt, "b" is just gone, and so is "d", long ago.
		p.states["a"] = "completed"
		db.exec(t, `DELETE FROM tallyman_outbox WHERE id IN ('a', 'b', 'd')`)
		db.exec(t, `UPDATE tallyman_events SET created_at = `+db.past()+` WHERE command_id = 'd'`)
		db.exec(t, `UPDATE tallyman_outbox SET event_seq = 1 WHERE id = 'c'`)
		db.exec(t, `UPDATE tallyman_outbox SET run_id = 'nobody' WHERE id = 'free'`)
		r := audit()
		var got []string
		for _, f := range r.Findings {
			got = append(got, f.Kind+" "+f.ID)
		}
		want := []string{"event_without_command b", "command_of_another_event c", "row_without_event free"}
		slices.Sort(got)
		slices.Sort(want)
		if r.Balanced || r.FindingCount != 3 || r.Unprovable != 1 || !slices.Equal(got, want) {
			t.Errorf("got %q and %d unprovable, want %q and 1", got, r.Unprovable, want)
		}

		db.exec(t, `UPDATE tallyman_outbox SET state = 'published', available_at = NULL, published_at = created_at WHERE id < 'c-001200' AND id > 'c-'`)
		var published []string
		for id, err := range outbox.Published(ctx, db.DB, db.Dialect) {
			if err != nil {
				t.Fatal(err)
			}
			published = append(published, id)
		}
		if !slices.Equal(published, many[:1200]) {
			t.Errorf("%d rows are said to be published, want 1200", len(published))
		}
		if none, err := outbox.Unknown(ctx, db.DB, db.Dialect, nil); err != nil || len(none) > 0 {
			t.Errorf("got %q, %v of no ids, as a pool without records has them", none, err)
		}
		unknown, err := outbox.Unknown(ctx, db.DB, db.Dialect, []string{"free", "x", "c", "'", ""})
		if err != nil || !slices.Equal(unknown, []string{"x", "'", ""}) {
			t.Errorf("unknown ids: %q, %v", unknown, err)
		}
	})
}
