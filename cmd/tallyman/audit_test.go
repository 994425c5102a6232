package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/stream"
)

// booked is a scene with five commands that have their outcome.
func booked(t *testing.T) (*scene, *tallyman.Pool) {
	t.Helper()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	ids := []string{"a", "b", "c", "d", "e"}
	for _, id := range ids {
		submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
	}
	work(t, p, ids...)
	s.run(t, "audit").expect(t, 0, "the books balance: all 5 sequences are accounted for")
	return s, p
}

func (s *scene) stream(t *testing.T, name string) jetstream.Stream {
	t.Helper()
	str, err := s.js(t).Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return str
}

// What other tools have made of a pool is named before it costs a command.
func TestStatus_NamesWhatWasAltered(t *testing.T) {
	t.Parallel()
	s, _ := booked(t)
	cons, err := s.js(t).Consumer(t.Context(), "main_commands", "default")
	if err != nil {
		t.Fatal(err)
	}
	cfg := cons.CachedInfo().Config
	cfg.MaxDeliver = 5
	if _, err := s.js(t).UpdateConsumer(t.Context(), "main_commands", cfg); err != nil {
		t.Fatal(err)
	}
	bucket := s.stream(t, "KV_main").CachedInfo().Config
	bucket.MaxAge = time.Hour
	if _, err := s.js(t).UpdateStream(t.Context(), bucket); err != nil {
		t.Fatal(err)
	}
	texts := []string{"its max deliver is 5", "run: tallyman init --pool main --queue default", "bucket main is not as tallyman init makes it: its max age is 1h0m0s"}
	s.run(t, "status").expect(t, 0, texts...)
	s.run(t, "status", "--json").expect(t, 0, texts...)
	s.run(t, "audit").expect(t, 0, texts...) // the books balance, still
	s.run(t, "init", "--pool", "main", "--queue", "default").expect(t, 0)
	for _, what := range []string{"status", "audit"} {
		if o := s.run(t, what); o.code != 0 || strings.Contains(o.stdout+o.stderr, "tallyman init") {
			t.Errorf("%s after the remedy: got %+v", what, o)
		}
	}
}

// Whatever is damaged by hand is found, and named with its cause.
func TestAudit_DamageByHand(t *testing.T) {
	t.Parallel()
	records := func(t *testing.T, s *scene) jetstream.KeyValue {
		t.Helper()
		kv, err := s.js(t).KeyValue(t.Context(), "main")
		if err != nil {
			t.Fatal(err)
		}
		return kv
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, s *scene, p *tallyman.Pool) error
		texts  []string
		seqs   []uint64
	}{
		{"a purge of the stream", func(t *testing.T, s *scene, p *tallyman.Pool) error {
			t.Helper()
			for _, id := range []string{"f", "g", "h"} {
				submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
			}
			return s.stream(t, stream.Name("main")).Purge(t.Context())
		}, []string{"missing sequences 6-8: likely purged from the stream before a worker got it", "3 missing"}, []uint64{6, 7, 8}},
		{"a command deleted by its sequence", func(t *testing.T, s *scene, p *tallyman.Pool) error {
			t.Helper()
			submit(t, p, tallyman.Command{ID: "f", Kind: "echo"})
			submit(t, p, tallyman.Command{ID: "g", Kind: "echo"})
			return s.stream(t, stream.Name("main")).DeleteMsg(t.Context(), 6)
		}, []string{"missing sequence 6: likely deleted from the stream by hand before a worker got it"}, []uint64{6}},
		{"a record deleted by its key", func(t *testing.T, s *scene, _ *tallyman.Pool) error {
			t.Helper()
			return records(t, s).Delete(t.Context(), "c")
		}, []string{`missing sequence 3 "c" (main.commands.default.echo.c): its record, then completed, was deleted by hand at `}, []uint64{3}},
		{"a record purged by its key", func(t *testing.T, s *scene, _ *tallyman.Pool) error {
			t.Helper()
			return records(t, s).Purge(t.Context(), "d")
		}, []string{`missing sequence 4 "d": likely its record was deleted by hand at `, "nats kv put main _absorbed/SEQUENCE WHY"}, []uint64{4}},
		{"all records purged", func(t *testing.T, s *scene, _ *tallyman.Pool) error {
			t.Helper()
			return s.stream(t, "KV_main").Purge(t.Context(), jetstream.WithPurgeSubject("$KV.main.*"))
		}, nil, nil}, // the settings go too: see below
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p := booked(t)
			if err := c.damage(t, s, p); err != nil {
				t.Fatal(err)
			}
			if c.texts == nil {
				s.run(t, "audit").expect(t, 1, `bucket "main" has no settings`, "tallyman init --pool main")
				s.run(t, "init").expect(t, 0)
				s.run(t, "audit").expect(t, 6, "missing sequences 1-5: likely an older copy of the bucket was put back, or its records were purged without a trace")
				return
			}
			s.run(t, "audit", "--seal").expect(t, 6, c.texts...)
			o := s.run(t, "audit", "--json")
			o.expect(t, 6)
			var r audit.Report
			if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
				t.Fatal(err)
			}
			var seqs []uint64
			for _, f := range r.Findings {
				seqs = append(seqs, f.Seq)
				if f.What != audit.FindingMissing || f.Cause == "" || f.Remedy == "" {
					t.Errorf("got finding %+v, want one about a missing sequence with cause and remedy", f)
				}
			}
			if !slices.Equal(seqs, c.seqs) || !slices.Equal(r.Missing, c.seqs) || r.SealedThrough != 0 {
				t.Errorf("got findings about %v, missing %v, sealed through %d; want %v and nothing sealed", seqs, r.Missing, r.SealedThrough, c.seqs)
			}
		})
	}
}

// An older copy of the stream is put back under the records, before and after
// the books were sealed.
func TestAudit_OlderStreamPutBack(t *testing.T) {
	t.Parallel()
	for _, sealed := range []bool{false, true} {
		s, p := booked(t)
		older := filepath.Join(t.TempDir(), "older")
		lies := filepath.Join(s.server.Dir(), "jetstream", "$G", "streams", stream.Name("main"))
		s.server.Kill()
		if err := os.CopyFS(older, os.DirFS(lies)); err != nil {
			t.Fatal(err)
		}
		if err := s.server.Restart(); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"f", "g"} {
			submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
		}
		work(t, p, "f", "g")
		want := "a record accounts for sequence 7 and the stream ends at 5: an older copy of the stream was put back"
		if sealed {
			s.run(t, "audit", "--seal").expect(t, 0, "sealed through")
			want = "the stream ends at sequence 5 and the books are sealed through 7: an older copy of the stream was put back"
		}
		s.server.Kill()
		if err := os.RemoveAll(lies); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(lies, os.DirFS(older)); err != nil {
			t.Fatal(err)
		}
		if err := s.server.Restart(); err != nil {
			t.Fatal(err)
		}
		s.run(t, "audit").expect(t, 6, "set_back sequence 7: "+want, "tallyman audit --against FILE names it")
	}
}

// until reads lines up to one that holds text.
func (w *watching) until(t *testing.T, text string) string {
	t.Helper()
	for {
		if l := w.line(t); strings.Contains(l, text) {
			return l
		}
	}
}

// stop sends SIGTERM and returns the exit code.
func (w *watching) stop(t *testing.T) int {
	t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for w.Scan() {
		continue
	}
	_ = w.cmd.Wait() // the exit code tells
	return w.cmd.ProcessState.ExitCode()
}

func TestAudit_Every(t *testing.T) {
	t.Parallel()
	s, p := booked(t)
	t.Run("seals round by round, and goes on when the server was away", func(t *testing.T) {
		w := s.live(t, true, "audit", "--every", "100ms", "--seal")
		w.until(t, "the books balance: all 5 sequences are accounted for; 0 pending, 0 parked, sealed through 5")
		submit(t, p, tallyman.Command{ID: "f", Kind: "echo"})
		w.until(t, "all 6 sequences are accounted for; 1 pending, 0 parked, sealed through 5")
		work(t, p, "f")
		w.until(t, "sealed through 6")
		s.server.Kill()
		w.until(t, "no audit in this round, the next one tries again")
		if err := s.server.Restart(); err != nil {
			t.Fatal(err)
		}
		w.until(t, "all 6 sequences are accounted for")
		if code := w.stop(t); code != 0 {
			t.Errorf("got exit code %d, want 0", code)
		}
	})
	t.Run("prints the whole report once something is amiss, and ends with 6", func(t *testing.T) {
		w := s.live(t, false, "audit", "--every", "100ms")
		w.until(t, "the books balance")
		submit(t, p, tallyman.Command{ID: "g", Kind: "echo"})
		if err := s.stream(t, stream.Name("main")).DeleteMsg(t.Context(), 7); err != nil {
			t.Fatal(err)
		}
		w.until(t, "missing sequence 7: likely deleted from the stream by hand")
		w.until(t, "the books do not balance: 1 missing")
		if code := w.stop(t); code != 6 {
			t.Errorf("got exit code %d, want 6", code)
		}
	})
	t.Run("prints a line of JSON per round", func(t *testing.T) {
		w := s.live(t, false, "audit", "--every", "100ms", "--json")
		for range 2 {
			var r audit.Report
			if err := json.Unmarshal([]byte(w.line(t)), &r); err != nil {
				t.Fatal(err)
			}
			if r.Balanced || r.SealedThrough != 6 || r.FirstSeq != 7 || !slices.Equal(r.Missing, []uint64{7}) {
				t.Errorf("got %+v, want sequence 7 missing", r)
			}
		}
		if code := w.stop(t); code != 6 {
			t.Errorf("got exit code %d, want 6", code)
		}
	})
	t.Run("that made no audit at all does not end well", func(t *testing.T) {
		w := (&scene{url: "nats://127.0.0.1:1"}).live(t, true, "audit", "--every", "100ms")
		w.until(t, "no audit in this round")
		if code := w.stop(t); code != 1 {
			t.Errorf("got exit code %d, want 1", code)
		}
	})
	t.Run("tells wrong usage", func(t *testing.T) {
		s.run(t, "audit", "--every=-1s").expect(t, 2, "--every -1s")
		s.run(t, "audit", "--every", "1s", "--against", "-").expect(t, 2, "--against -")
		s.run(t, "audit", "--every", "1s", "--against", filepath.Join(t.TempDir(), "none")).expect(t, 2, "none")
	})
}
