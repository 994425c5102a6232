package journal_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/kvstate"
)

// republish stores a copy of a message, as someone might who bypasses Commit.
func (r *rig) republish(t *testing.T, m *jetstream.RawStreamMsg) {
	t.Helper()
	c := nats.NewMsg(m.Subject)
	c.Data = m.Data
	for k, v := range m.Header {
		if !strings.HasPrefix(k, "Nats-") {
			c.Header[k] = v
		}
	}
	if _, err := r.js.PublishMsg(r.ctx, c); err != nil {
		t.Fatal(err)
	}
}

func TestAudit_NamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relay(t, r.party, r.producer(t), journal.RelayConfig{})
	r.commit(t, "a", 0, order("opened", 3))
	r.commit(t, "b", 0, order("opened", 1))
	r.published(t)
	if a := r.audit(t); a.Commands != 4 || a.Runs != 2 || a.Decisions != 2 {
		t.Errorf("got %+v", a)
	}
	// Somebody takes one out of the command stream.
	commands, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	in, err := r.pool.Commands().Find(r.ctx, "a/1/2")
	if err != nil {
		t.Fatal(err)
	}
	if err := commands.DeleteMsg(r.ctx, in.Seq); err != nil {
		t.Fatal(err)
	}
	a, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{Seal: true})
	if err != nil || a.Balanced || a.MissingCount != 1 || a.Missing[0] != (journal.Missing{Run: "a", Seq: 1, ID: "a/1/2"}) {
		t.Errorf("got %+v, %v", a, err)
	}
	if !strings.Contains(a.Summary(), "1 missing command") {
		t.Errorf("got %q", a.Summary())
	}
	// Somebody puts another one in its place.
	if _, err := r.js.Publish(r.ctx, r.pool.Commands().Subject("default", "step", "a/1/2"), []byte("something else")); err != nil {
		t.Fatal(err)
	}
	a, err = journal.Audit(r.ctx, r.Journal, journal.AuditOptions{})
	if err != nil || a.Balanced || a.MissingCount != 1 || a.Missing[0] != (journal.Missing{Run: "a", Seq: 1, ID: "a/1/2", Other: true}) {
		t.Errorf("got %+v, %v", a, err)
	}
	if m, err := r.pool.Records().Read(r.ctx, kvstate.KeyJournal); err != nil || strings.Contains(string(m.Raw), `"sealed_through":1`) {
		t.Errorf("books that do not balance were closed: %s, %v", m.Raw, err)
	}
}

func TestAudit_CloseLetsReceiptsExpire(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, tallyman.Settings{Retention: 15 * time.Second}, tallyman.Topology{}, journal.Config{}) // time enough to close the books in
	relay(t, r.party, r.producer(t), journal.RelayConfig{})
	first := r.commit(t, "a", 0, order("opened", 2))
	r.published(t)
	// As long as a command has no outcome, the books cannot be closed over it.
	if _, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{Seal: true}); err != nil {
		t.Fatal(err)
	}
	if a := r.audit(t); a.SealedThrough != 0 || a.Commands != 2 {
		t.Errorf("got %+v", a)
	}
	r.work(t)
	for _, id := range first.Commands {
		if _, err := r.pool.Wait(r.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	a, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{Seal: true})
	if err != nil || !a.Balanced {
		t.Fatalf("got %+v, %v", a, err)
	}
	r.eventually(t, "receipts to expire", func() bool {
		for _, id := range first.Commands {
			if e, err := r.pool.Records().Read(r.ctx, command.Token(id)); err != nil || e.Raw != nil {
				return false
			}
		}
		return true
	})
	if a := r.audit(t); a.SealedThrough != 1 || a.Commands != 0 || a.Decisions != 1 {
		t.Errorf("got %+v", a)
	}
	// A journal that was made anew counts from 1 again: what was closed must not hide it.
	if err := r.js.DeleteStream(r.ctx, journal.Name("main")); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{}); !errors.Is(err, journal.ErrNoJournal) {
		t.Errorf("without a journal: %v, want ErrNoJournal", err)
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{}); err == nil || !strings.Contains(err.Error(), "_journal/_mark") {
		t.Errorf("with a new one: %v, want an error that names the key to delete", err)
	}
	r.commit(t, "b", 0, order("opened", 2))
	if _, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{}); err == nil || !strings.Contains(err.Error(), "_journal/_mark") {
		t.Errorf("with a new one that has grown as long: %v, want an error that names the key to delete", err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	consumer := func() jetstream.ConsumerConfig {
		t.Helper()
		c, err := r.js.Consumer(r.ctx, journal.Name("main"), "relay")
		if err != nil {
			t.Fatal(err)
		}
		return c.CachedInfo().Config
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
		t.Errorf("again: %v", err)
	}
	if got := consumer(); got.AckWait != journal.DefaultLease || got.MaxAckPending != -1 || got.MaxDeliver != -1 {
		t.Errorf("got %+v", got)
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main", Lease: time.Minute, MaxBytes: 4 << 20}); err != nil {
		t.Errorf("changed: %v", err)
	}
	if got := consumer(); got.AckWait != time.Minute {
		t.Errorf("got %+v", got)
	}
	for n := uint64(0); ; n++ {
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		_, err := r.Commit(ctx, "fill", n, events("a "+strings.Repeat("x", 1<<19)))
		cancel()
		if err == nil && n < 20 {
			continue
		}
		if !errors.Is(err, journal.ErrFull) {
			t.Errorf("decision %d of a journal of 4 MB: %v, want ErrFull", n+1, err)
		}
		if got := uint64(len(r.history(t, "fill"))); got != n {
			t.Errorf("%d decisions are left of %d", got, n)
		}
		break
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "other"}); err == nil || !strings.Contains(err.Error(), "tallyman init --pool other") {
		t.Errorf("without a pool: %v", err)
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "a.b"}); !errors.Is(err, command.ErrInvalidName) {
		t.Errorf("a pool of a bad name: %v", err)
	}
	if err := tallyman.Create(r.ctx, r.raw, "bare", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	bare, err := tallyman.Open(r.ctx, r.nc, "bare")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bare.Close() })
	if _, err := journal.Open(r.ctx, r.nc, bare, journal.Options{}); !errors.Is(err, journal.ErrNoJournal) || !strings.Contains(err.Error(), "--pool bare --journal") {
		t.Errorf("a pool without a journal: %v, want ErrNoJournal and the remedy", err)
	}
}
