package outbox_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/outbox"
)

// The rights that docs/outbox.md names are enough, for a service and for a relay.
func TestRights(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, outbox.Postgres)
	var schema string
	if err := db.QueryRowContext(t.Context(), `SELECT current_schema()`).Scan(&schema); err != nil {
		t.Fatal(err)
	}
	role := "r_" + strings.ToLower(rand.Text()[:16])
	db.exec(t, `CREATE ROLE `+role)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := db.ExecContext(ctx, `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	db.SetMaxOpenConns(1) // the one whose role is changed
	as := func(rights ...string) {
		t.Helper()
		db.exec(t, `RESET ROLE`)
		db.exec(t, `REVOKE ALL ON ALL TABLES IN SCHEMA `+schema+` FROM `+role)
		db.exec(t, `GRANT USAGE ON SCHEMA `+schema+` TO `+role)
		for _, r := range rights {
			db.exec(t, `GRANT `+r+` TO `+role)
		}
		db.exec(t, `SET ROLE `+role)
	}
	as("SELECT, INSERT ON tallyman_outbox, tallyman_events", "SELECT, INSERT, UPDATE ON tallyman_inbox")
	if err := db.within(t.Context(), func(tx outbox.Tx) error {
		if err := outbox.CommitDecision(t.Context(), tx, "run", 0, []outbox.Event{{Kind: "k", CommandID: "a"}}, []outbox.Command{{ID: "a", Kind: "k"}, {ID: "b", Kind: "k", OrderKey: "x"}}); err != nil {
			return err
		}
		if err := outbox.Advance(t.Context(), tx, claim("c", 1), 0, 1, func(context.Context) error { return nil }); err != nil {
			return err
		}
		_, _, err := outbox.Once(t.Context(), tx, claim("c", 2), func(context.Context) ([]byte, error) { return nil, nil })
		return err
	}); err != nil {
		t.Fatal(err)
	}
	as("SELECT, UPDATE, DELETE ON tallyman_outbox", "SELECT ON tallyman_schema")
	p := newPool()
	p.states["a"], p.states["b"] = "completed", "completed"
	r := db.start(t, p, func(c *outbox.Config) { c.Sweep, c.Retention = 20*time.Millisecond, time.Millisecond })
	eventually(t, "the rows to come and go", func() bool { return r.Stats().Removed == 2 })
	r.stop(t)
}
