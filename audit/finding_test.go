package audit_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// finding checks that a report has just one finding about a sequence, of that
// kind and id, with these words in its cause or remedy.
func finding(t *testing.T, r audit.Report, what string, seq uint64, id string, words ...string) audit.Finding {
	t.Helper()
	var found []audit.Finding
	for _, f := range r.Findings {
		if f.Seq == seq && f.What == what {
			found = append(found, f)
		}
	}
	if len(found) != 1 {
		t.Errorf("got %d findings %s about sequence %d, want 1; all: %v", len(found), what, seq, r.Findings)
		return audit.Finding{}
	}
	f := found[0]
	if f.ID != id {
		t.Errorf("sequence %d: got id %q, want %q", seq, f.ID, id)
	}
	for _, w := range words {
		if text := f.String(); !strings.Contains(text, w) {
			t.Errorf("sequence %d: got %q, want %q in it", seq, text, w)
		}
	}
	return f
}

func TestRun_NamesTheCause(t *testing.T) {
	t.Parallel()
	remove := func(t *testing.T, s *scene, key string, how func(jetstream.KeyValue) error) {
		t.Helper()
		kv, err := s.js.KeyValue(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		if err := how(kv); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, s *scene)
		check  func(t *testing.T, r audit.Report)
	}{
		{"a command deleted before any worker got it", func(t *testing.T, s *scene) {
			t.Helper()
			s.submit(t, 6, 8)
			if err := s.commands(t).DeleteMsg(t.Context(), 7); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "missing", 7, "", "likely deleted from the stream by hand before a worker got it: the queues have delivered up to sequence 5", "--against FILE")
		}},
		{"a purge of all that waits", func(t *testing.T, s *scene) {
			t.Helper()
			s.submit(t, 6, 8)
			if err := s.commands(t).Purge(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			for _, seq := range []uint64{6, 7, 8} {
				finding(t, r, "missing", seq, "", "likely purged from the stream before a worker got it: 8 sequences left the stream with 5 deliveries")
			}
		}},
		{"a record that was deleted, whose bytes still lie below the marker", func(t *testing.T, s *scene) {
			t.Helper()
			remove(t, s, "c-4", func(kv jetstream.KeyValue) error { return kv.Delete(t.Context(), "c-4") })
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			f := finding(t, r, "missing", 4, "c-4", "its record, then completed, was deleted by hand at ", "no work was lost", "nats kv put main _absorbed/SEQUENCE WHY")
			if f.Subject != "main.commands.default.echo.c-4" {
				t.Errorf("got subject %q", f.Subject)
			}
		}},
		{"a parked record that was deleted", func(t *testing.T, s *scene) {
			t.Helper()
			remove(t, s, "c-2", func(kv jetstream.KeyValue) error { return kv.Delete(t.Context(), "c-2") })
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "missing", 2, "c-2", "its record, then parked, was deleted by hand", "it has no outcome: submit it again")
		}},
		{"a record of which only the marker is left", func(t *testing.T, s *scene) {
			t.Helper()
			s.remove(t, "c-4")
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "missing", 4, "c-4", "likely its record was deleted by hand at ")
		}},
		{"several of which only the markers are left", func(t *testing.T, s *scene) {
			t.Helper()
			s.remove(t, "c-1")
			s.remove(t, "c-4")
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			for _, seq := range []uint64{1, 4} {
				finding(t, r, "missing", seq, "", `markers of that are left of "c-1", "c-4"`)
			}
		}},
		{"a record purged without a trace", func(t *testing.T, s *scene) {
			t.Helper()
			purge(t, s, "c-3")
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "missing", 3, "", "or its record was taken out of the bucket without a trace")
		}},
		{"the newest records purged without a trace", func(t *testing.T, s *scene) {
			t.Helper()
			purge(t, s, "c-4")
			purge(t, s, "c-5")
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			for _, seq := range []uint64{4, 5} {
				finding(t, r, "missing", seq, "", "likely an older copy of the bucket was put back", "nothing accounts for any sequence above 3")
			}
		}},
		{"a receipt that is damaged", func(t *testing.T, s *scene) {
			t.Helper()
			e, err := s.Records().Read(t.Context(), "c-3")
			if err != nil {
				t.Fatal(err)
			}
			e.Raw[len(e.Raw)/2] ^= 1
			if err := s.Records().PutWait(t.Context(), "c-3", e.Raw, e.Revision); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "missing", 3, "", `likely the record that accounted for it is damaged, or was: "c-3"`)
			finding(t, r, "corrupt", 0, "c-3", "is damaged: ", "checksum", "nats kv purge main c-3")
		}},
		{"a requeue that was cut off", func(t *testing.T, s *scene) {
			t.Helper()
			parked, err := s.Find(t.Context(), "c-2")
			if err != nil {
				t.Fatal(err)
			}
			next, err := parked.Advance(kvstate.Requeued, "ann", "", parked.StoredAt)
			if err != nil {
				t.Fatal(err)
			}
			s.write(t, next)
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "stranded", 2, "c-2", "requeued by ann at ", "never published", "tallyman requeue c-2")
			if got, want := r.Summary(), "the books do not balance: 1 stranded"; got != want {
				t.Errorf("got %q, want %q: its parking accounts for the sequence", got, want)
			}
		}},
		{"a command deleted in mid-run", func(t *testing.T, s *scene) {
			t.Helper()
			s.submit(t, 6, 6)
			s.write(t, &kvstate.Record{ID: "c-6", Kind: "echo", Queue: "default", State: kvstate.Claimed, Owner: "w-1", Attempt: 2, Seqs: []uint64{6}})
			if err := s.commands(t).DeleteMsg(t.Context(), 6); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "stranded", 6, "c-6", "deleted from the stream by hand while it was claimed (attempt 2 by w-1", "nats pub main.commands.default.echo.c-6", "tallyman cancel c-6")
		}},
		{"two that account for one", func(t *testing.T, s *scene) {
			t.Helper()
			s.write(t, &kvstate.Record{ID: "x", Kind: "echo", State: kvstate.Completed, Seqs: []uint64{5}})
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "doubled", 5, "", `"c-5", "x" account for it`)
		}},
		{"a record of a sequence that never was", func(t *testing.T, s *scene) {
			t.Helper()
			s.write(t, &kvstate.Record{ID: "x", Kind: "echo", State: kvstate.Completed, Seqs: []uint64{50}})
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "set_back", 50, "", "a record accounts for sequence 50 and the stream ends at 5", "--against FILE")
		}},
		{"a sequence written off that never was", func(t *testing.T, s *scene) {
			t.Helper()
			if err := s.Records().PutWait(t.Context(), kvstate.AbsorbedKey(50), []byte("why"), 0); err != nil {
				t.Fatal(err)
			}
		}, func(t *testing.T, r audit.Report) {
			t.Helper()
			finding(t, r, "set_back", 50, "", "the entry _absorbed/50 accounts for sequence 50 and the stream ends at 5", "nats kv del main _absorbed/50")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.submit(t, 1, 5)
			s.work(t, 5)
			if got := s.audit(t, audit.Options{}); !got.Balanced || len(got.Findings) != 0 || got.FindingCount != 0 {
				t.Fatalf("before: got %+v, want balanced books without findings", got)
			}
			c.damage(t, s)
			r := s.audit(t, audit.Options{Seal: true})
			if r.Balanced || r.SealedThrough != 0 || r.FindingCount != uint64(len(r.Findings)) {
				t.Errorf("got balanced %v, sealed through %d, %d findings counted and %d listed", r.Balanced, r.SealedThrough, r.FindingCount, len(r.Findings))
			}
			c.check(t, r)
		})
	}
}

// purge takes a record out of the bucket's stream, which leaves no marker.
func purge(t *testing.T, s *scene, key string) {
	t.Helper()
	str, err := s.js.Stream(t.Context(), "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.main."+key)); err != nil {
		t.Fatal(err)
	}
}

// What a person has looked into is written off, and no longer stands in the way of the seal.
func TestRun_WrittenOff(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 5)
	s.work(t, 5)
	purge(t, s, "c-3")
	finding(t, s.audit(t, audit.Options{}), "missing", 3, "", "write it off with: nats kv put main _absorbed/SEQUENCE WHY")
	kv, err := s.js.KeyValue(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(t.Context(), "_absorbed/3", "looked into by ann"); err != nil {
		t.Fatal(err)
	}
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 5 {
		t.Errorf("got %+v, want balanced books, sealed through 5", got)
	}
}

// A stranded command goes on when it is published once more, as its finding says.
func TestRun_StrandedIsPublishedAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 1)
	c, err := s.Commands().Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	rec := &kvstate.Record{ID: "c-1", Kind: "echo", Queue: "default", State: kvstate.Claimed, Owner: "w-1", Attempt: 1, Seqs: []uint64{1}, Offset: 7}
	rec.Digest = dedupe.Digest("echo", nil)
	s.write(t, rec)
	if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	f := finding(t, s.audit(t, audit.Options{}), "stranded", 1, "c-1", "nats pub "+c.Subject)
	if f.Subject != c.Subject {
		t.Errorf("got subject %q, want %q", f.Subject, c.Subject)
	}
	if _, err := s.js.Publish(t.Context(), f.Subject, nil); err != nil {
		t.Fatal(err)
	}
	s.work(t, 1)
	if got, err := s.Find(t.Context(), "c-1"); err != nil || got.State != tallyman.Completed || got.Offset != 7 || got.Attempt != 2 {
		t.Errorf("got %+v, %v; want it completed from offset 7 on", got, err)
	}
	if got := s.audit(t, audit.Options{}); !got.Balanced {
		t.Errorf("got %+v, want balanced", got)
	}
}
