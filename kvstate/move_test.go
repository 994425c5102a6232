package kvstate_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestBelongs(t *testing.T) {
	t.Parallel()
	for key, want := range map[command.Token]command.Token{
		"a/1": "a/1", "=5Fpool": "=5Fpool",
		kvstate.NoteKey("a/1", "x-1"): "a/1", kvstate.PayloadKey("a/1"): "a/1", kvstate.CorruptKey("a/1", 7): "a/1",
		kvstate.KeySettings: "", kvstate.KeyAudit: "", kvstate.KeyJournal: "", kvstate.AbsorbedKey(7): "", kvstate.ConflictKey(7): "",
		kvstate.MalformedKey(7): "", kvstate.PayloadKey(kvstate.ConflictKey(7)): "", kvstate.PauseKey("q"): "",
		kvstate.FollowUpConflictKey("a", 1): "", kvstate.SnapshotKey("r", 0): "", kvstate.ProbeKey("w"): "",
	} {
		if got, ok := kvstate.Belongs(key); ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %q, %v, want %q", key, got, ok, want)
		}
	}
}

func TestStore_Adopt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Shards: 2, Retention: time.Hour}, tallyman.Topology{})
	from, to := p.Shards()[0].Records, p.Shards()[1].Records
	rec, err := (&kvstate.Record{ID: "a", Kind: "k", Seqs: []uint64{3}}).Advance(kvstate.Completed, "worker-1", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Result = []byte("done")
	if _, err := from.WriteWait(ctx, "a", rec); err != nil {
		t.Fatal(err)
	}
	if err := from.PutWait(ctx, kvstate.PayloadKey("b"), []byte("payload"), 0); err != nil {
		t.Fatal(err)
	}
	movables := func() map[command.Token]kvstate.Movable {
		t.Helper()
		all := map[command.Token]kvstate.Movable{}
		if err := from.ScanMovable(ctx, func(m kvstate.Movable) error {
			if _, ok := kvstate.Belongs(m.Key); ok {
				all[m.Key] = m
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := movables()
	if len(all) != 2 || all["a"].Left <= 0 || all["a"].Left > time.Hour || all[kvstate.PayloadKey("b")].Left != 0 {
		t.Fatalf("got %+v, want a receipt that expires and a payload that does not", all)
	}
	for range 2 { // the second time changes nothing
		for _, m := range all {
			if err := to.Adopt(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	e, err := to.Read(ctx, "a")
	if err != nil || e.Record == nil || string(e.Record.Result) != "done" || len(e.Record.Seqs) != 0 || len(e.Record.Trail) != 1 || e.Label != kvstate.Completed {
		t.Errorf("got %+v, %v, want the receipt without its sequences", e, err)
	}
	if e, err := to.Read(ctx, kvstate.PayloadKey("b")); err != nil || string(e.Raw) != "payload" {
		t.Errorf("got %q, %v", e.Raw, err)
	}
	for key, m := range all {
		if err := from.GiveUp(ctx, key, m.Revision+1); !errors.Is(err, kvstate.ErrStale) {
			t.Errorf("give up %s at another revision: got %v, want %v", key, err, kvstate.ErrStale)
		}
		for range 2 {
			if err := from.GiveUp(ctx, key, m.Revision); err != nil {
				t.Errorf("give up %s: %v", key, err)
			}
		}
	}
	if left := movables(); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	if err := from.GiveUp(ctx, kvstate.KeySettings, 1); err == nil {
		t.Error("the settings were given up")
	}

	// Back over the markers of what was given up.
	if err := to.ScanMovable(ctx, func(m kvstate.Movable) error {
		if _, ok := kvstate.Belongs(m.Key); !ok {
			return nil
		}
		return from.Adopt(ctx, m)
	}); err != nil {
		t.Fatal(err)
	}
	if e, err := from.Read(ctx, "a"); err != nil || e.Record == nil || string(e.Record.Result) != "done" {
		t.Errorf("back: got %+v, %v", e, err)
	}
	bucket, err := pooltest.JetStream(t, nc).Stream(ctx, "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	if head, revisions := last(t, bucket, "a"); revisions != 1 {
		t.Errorf("the receipt (%v) lies over %d others, which come to light when it expires", head, revisions-1)
	}
	other := *e.Record
	other.Result = []byte("other")
	if err := to.Adopt(ctx, kvstate.Movable{Entry: kvstate.Entry{Key: "a", Record: &other, Raw: []byte("x")}}); !errors.Is(err, kvstate.ErrStale) {
		t.Errorf("another receipt: got %v, want %v", err, kvstate.ErrStale)
	}
}

func TestStore_RaiseTo(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	js := pooltest.JetStream(t, nc)
	s := pooltest.Create(t, nc, tallyman.Settings{}, tallyman.Topology{}).Records()
	for _, to := range []uint64{1000, 1000, 5} {
		if err := s.RaiseTo(ctx, to); err != nil {
			t.Fatal(err)
		}
		if got, err := s.LastRevision(ctx); err != nil || got != 1000 {
			t.Errorf("raised to %d: got %d, %v, want 1000", to, got, err)
		}
	}
	for range 2 { // it begins there once, and goes on afterwards
		if err := kvstate.Create(ctx, js, kvstate.Config{Pool: "new", FirstRevision: 5000}); err != nil {
			t.Fatal(err)
		}
		if err := kvstate.Create(ctx, js, kvstate.Config{Pool: "new"}); err != nil {
			t.Fatal(err)
		}
	}
	kv, err := js.KeyValue(ctx, "new")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := kv.Put(ctx, "a", nil); err != nil || got != 5000 {
		t.Errorf("first revision: got %d, %v, want 5000", got, err)
	}
	for range 2 {
		if err := kvstate.Delete(ctx, js, "new"); err != nil {
			t.Error(err)
		}
	}
}
