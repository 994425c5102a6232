package journal_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/journal"
)

// TestPermissions_OfTheDocument runs a journal with the rights that docs/journal.md gives.
func TestPermissions_OfTheDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/journal.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(text), "<!-- journal permissions: begin -->\n```\n")
	block, _, ended := strings.Cut(block, "```\n<!-- journal permissions: end -->")
	if !ok || !ended {
		t.Fatal("the document has no block of permissions")
	}
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, []byte(block+`
authorization { users: [
  { user: all, password: p }
  { user: decider, password: p, permissions: $TALLYMAN_DECIDER }
  { user: relay, password: p, permissions: $TALLYMAN_RELAY }
] }`), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{ConfigFile: config, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	ctx := pooltest.Context(t)
	as := func(user string) string {
		return strings.Replace(server.URL(), "nats://", "nats://"+user+":p@", 1)
	}
	nc := connect(t, as("all"))
	if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	if err := journal.Create(ctx, nc, journal.Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	r := &rig{party: joinAt(t, ctx, as("all")), ctx: ctx}
	if _, err := r.pool.Submit(ctx, step("taken", "by another act")); err != nil {
		t.Fatal(err)
	}
	decider := joinAt(t, ctx, as("decider"))
	run := load(t, r, decider, "a", ledgers(2))
	for range 5 {
		d := events("noted x")
		d.Commands = []tallyman.Command{step("", "p")}
		if _, err := run.Decide(ctx, func(ledger) (journal.Decision, error) { return d, nil }); err != nil {
			t.Fatal(err)
		}
	}
	d := events("noted y")
	d.Commands = []tallyman.Command{step("taken", "for something else")}
	if _, err := run.Commit(ctx, d); err != nil {
		t.Fatal(err)
	}
	if got := load(t, r, decider, "a", ledgers(2)); got.Seq() != 6 {
		t.Errorf("got %d decisions", got.Seq())
	}
	carrier := joinAt(t, ctx, as("relay"))
	rel, stop := relay(t, carrier, carrier.producer(t), journal.RelayConfig{})
	r.published(t)
	stop()
	if s := rel.Stats(); s.Published != 6 || s.Refused != 1 {
		t.Errorf("got %+v", s)
	}
	if a := r.audit(t); a.Commands != 6 || a.RefusedCount != 1 {
		t.Errorf("got %+v", a)
	}
	// Neither of them may do the other's work, nor the operator's.
	short, done := context.WithTimeout(ctx, time.Second) // a denial reaches the caller as a timeout
	defer done()
	if err := journal.Create(short, decider.nc, journal.Config{Pool: "main"}); err == nil {
		t.Error("a decider may create journals")
	}
}
