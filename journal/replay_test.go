package journal_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/journal"
)

func purgeOf(subject string) jetstream.StreamPurgeOpt { return jetstream.WithPurgeSubject(subject) }

func TestReplay_IsPure(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for n := range uint64(10) {
		r.commit(t, "a", n, order("went on", 3))
	}
	before := r.written(t)
	for range 20 {
		if n, err := r.Replay(r.ctx, "a", func(journal.Recorded) error { return nil }); err != nil || n != 10 {
			t.Fatalf("got %d, %v", n, err)
		}
		if got := load(t, r, r.party, "a", journal.Model[int]{Fold: func(n *int, _ journal.Recorded) error { *n++; return nil }}).State(); got != 10 {
			t.Fatalf("got %d events", got)
		}
	}
	if after := r.written(t); after != before {
		t.Errorf("replaying changed the pool: %s, it was %s", after, before)
	}
	if s, err := r.Status(r.ctx); err != nil || s.Unpublished == 0 || s.Outstanding != 0 || s.PublishedThrough != 0 {
		t.Errorf("replaying touched the relay's consumer: %+v, %v", s, err)
	}
}

// written says what all streams hold.
func (r *rig) written(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, name := range []string{"main_commands", "KV_main", "main_journal"} {
		s, err := r.js.Stream(r.ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %d of %d; ", name, s.CachedInfo().State.Msgs, s.CachedInfo().State.LastSeq)
	}
	return b.String()
}

func TestReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	t.Run("of a run that nobody knows shows nothing", func(t *testing.T) {
		if n, err := r.Replay(r.ctx, "nobody", func(journal.Recorded) error { return errors.New("an event") }); n != 0 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
		if _, err := r.Replay(r.ctx, "", nil); !errors.Is(err, journal.ErrInvalid) {
			t.Errorf("of no run: %v, want ErrInvalid", err)
		}
	})
	t.Run("ends with the error of the fold, and says where", func(t *testing.T) {
		for n := range uint64(3) {
			r.commit(t, "error", n, events("a", "b"))
		}
		cause, calls := errors.New("no more"), 0
		_, err := r.Replay(r.ctx, "error", func(ev journal.Recorded) error {
			if calls++; ev.Seq == 2 && ev.N == 2 {
				return cause
			}
			return nil
		})
		if !errors.Is(err, cause) || calls != 4 || !strings.Contains(err.Error(), `event 2 (b) of decision 2 of run "error"`) {
			t.Errorf("got %v after %d calls", err, calls)
		}
		ctx, cancel := context.WithCancel(r.ctx)
		_, err = r.Replay(ctx, "error", func(journal.Recorded) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after its context ended: %v", err)
		}
	})
	t.Run("finds gaps and copies", func(t *testing.T) {
		for n := range uint64(4) {
			r.commit(t, "gap", n, events(fmt.Sprint("e", n)))
		}
		stream, err := r.js.Stream(r.ctx, journal.Name("main"))
		if err != nil {
			t.Fatal(err)
		}
		last, err := stream.GetLastMsgForSubject(r.ctx, "main.journal.gap")
		if err != nil {
			t.Fatal(err)
		}
		// Single decisions cannot be deleted.
		if err := stream.DeleteMsg(r.ctx, last.Sequence-1); err == nil {
			t.Error("a decision was deleted")
		}
		// The first ones can be purged, which only an operator does.
		if err := stream.Purge(r.ctx, purgeOf("main.journal.gap"), jetstream.WithPurgeKeep(2)); err != nil {
			t.Fatal(err)
		}
		_, err = r.Replay(r.ctx, "gap", func(journal.Recorded) error { return nil })
		if !errors.Is(err, journal.ErrGap) || !strings.Contains(err.Error(), "decision 3 follows decision 0") {
			t.Errorf("got %v, want ErrGap", err)
		}
		// A copy of a decision, as someone might publish who bypasses Commit.
		r.commit(t, "copy", 0, events("a"))
		only, err := stream.GetLastMsgForSubject(r.ctx, "main.journal.copy")
		if err != nil {
			t.Fatal(err)
		}
		r.republish(t, only)
		if _, err = r.Replay(r.ctx, "copy", func(journal.Recorded) error { return nil }); !errors.Is(err, journal.ErrGap) {
			t.Errorf("got %v, want ErrGap", err)
		}
		a, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{})
		if err != nil || a.Balanced || a.GapCount != 2 {
			t.Fatalf("got %+v, %v", a, err)
		}
		for i, want := range []journal.Gap{{Run: "gap", Want: 1, Got: 3}, {Run: "copy", Want: 2, Got: 1}} {
			got := a.Gaps[i]
			got.StreamSeq = 0
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
	})
}

func TestReplay_BoundedMemory(t *testing.T) {
	r := newRig(t)
	const decisions, size = 64, 500 << 10 // 32 MB
	for n := range uint64(decisions) {
		r.commit(t, "large", n, events("a "+strings.Repeat("x", size)))
	}
	var peak uint64
	total := 0
	runtime.GC()
	var start runtime.MemStats
	runtime.ReadMemStats(&start)
	if _, err := r.Replay(r.ctx, "large", func(ev journal.Recorded) error {
		if total += len(ev.Data); ev.Seq%10 == 0 {
			runtime.GC()
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapAlloc)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if total != decisions*size {
		t.Errorf("got %d bytes, want %d", total, decisions*size)
	}
	// The server lives in this process too, and keeps blocks in memory: allow for
	// them, but not for the run.
	grown := int64(peak) - int64(start.HeapAlloc)
	t.Logf("the heap grew by %d MB", grown>>20)
	if grown > decisions*size/2 {
		t.Errorf("the heap grew by %d MB while %d MB were replayed", grown>>20, decisions*size>>20)
	}
}
