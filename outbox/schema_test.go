package outbox_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/tallyman-go/tallyman/outbox"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, d := range []outbox.Dialect{outbox.SQLite, outbox.Postgres} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			t.Run("is done once, however many start together", func(t *testing.T) {
				t.Parallel()
				db := emptyDatabase(t, d)
				var group sync.WaitGroup
				for range 8 {
					group.Go(func() {
						if err := outbox.Migrate(t.Context(), db.DB, d); err != nil {
							t.Error(err)
						}
					})
				}
				group.Wait()
				if got := db.count(t, `SELECT count(*) FROM tallyman_schema`); got != 3 {
					t.Errorf("%d steps are noted, want 3", got)
				}
				if err := outbox.CheckSchema(t.Context(), db.DB, d); err != nil {
					t.Error(err)
				}
				db.add(t, numbered(1)...)
			})
			t.Run("tells what is missing and how to get it", func(t *testing.T) {
				t.Parallel()
				db := emptyDatabase(t, d)
				err := outbox.CheckSchema(t.Context(), db.DB, d)
				if !errors.Is(err, outbox.ErrNoSchema) || !strings.Contains(err.Error(), "--migrate") {
					t.Errorf("got %v, want ErrNoSchema with the remedy", err)
				}
				r, err := outbox.NewRelay(outbox.Config{DB: db.DB, Dialect: d, Submitter: newPool(), Logger: silent})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.Run(t.Context()); !errors.Is(err, outbox.ErrNoSchema) {
					t.Errorf("the relay ended with %v, want ErrNoSchema", err)
				}
			})
			t.Run("goes on where an earlier version ended", func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t, d)
				db.add(t, numbered(3)...)
				db.exec(t, `DROP TABLE tallyman_events`)
				db.exec(t, `DELETE FROM tallyman_schema WHERE version = 3`)
				if err := outbox.CheckSchema(t.Context(), db.DB, d); !errors.Is(err, outbox.ErrNoSchema) {
					t.Errorf("got %v, want ErrNoSchema", err)
				}
				if err := outbox.Migrate(t.Context(), db.DB, d); err != nil {
					t.Fatal(err)
				}
				if got := db.in(t, "pending"); got != 3 {
					t.Errorf("%d rows are left, want 3", got)
				}
				if err := outbox.CheckSchema(t.Context(), db.DB, d); err != nil {
					t.Error(err)
				}
			})
			t.Run("leaves the tables of a later version alone", func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t, d)
				db.exec(t, `INSERT INTO tallyman_schema (version, name) VALUES (99, 'later')`)
				if err := outbox.Migrate(t.Context(), db.DB, d); !errors.Is(err, outbox.ErrNoSchema) {
					t.Errorf("got %v, want ErrNoSchema", err)
				}
				if err := outbox.CheckSchema(t.Context(), db.DB, d); !errors.Is(err, outbox.ErrNoSchema) || !strings.Contains(err.Error(), "later version") {
					t.Errorf("got %v, want ErrNoSchema with the remedy", err)
				}
			})
		})
	}
	t.Run("wants a dialect", func(t *testing.T) {
		t.Parallel()
		if err := outbox.Migrate(t.Context(), emptyDatabase(t, outbox.SQLite).DB, 0); err == nil {
			t.Error("got no error")
		}
	})
}
