package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/kvstate"
)

func (s *scene) seal(t *testing.T) (through uint64, entry kvstate.Entry) {
	t.Helper()
	e, err := s.Records().Read(t.Context(), kvstate.KeyAudit)
	if err != nil {
		t.Fatal(err)
	}
	var stored struct {
		Through uint64 `json:"sealed_through"`
	}
	if e.Raw != nil {
		if err := json.Unmarshal(e.Raw, &stored); err != nil {
			t.Fatal(err)
		}
	}
	return stored.Through, e
}

// setSeal stores a seal by hand.
func (s *scene) setSeal(t *testing.T, text string) {
	t.Helper()
	e, err := s.Records().Read(t.Context(), kvstate.KeyAudit)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Records().PutWait(t.Context(), kvstate.KeyAudit, []byte(text), e.Revision); err != nil {
		t.Fatal(err)
	}
}

func TestRun_Seal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 5)
	s.work(t, 5)
	s.submit(t, 6, 6)
	if got := s.audit(t, audit.Options{}); got.SealedThrough != 0 || got.FirstSeq != 1 {
		t.Fatalf("got %+v, want nothing sealed by an audit that was not told to", got)
	}
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 5 || got.FirstSeq != 1 {
		t.Fatalf("got %+v, want it balanced and sealed up to the command that waits", got)
	}
	s.remove(t, "c-5") // as if its receipt had expired
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 5 || got.FirstSeq != 6 {
		t.Errorf("got %+v, want balanced, sealed through 5", got)
	}
	if err := s.commands(t).DeleteMsg(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if got := s.audit(t, audit.Options{Seal: true}); got.Balanced || !slices.Equal(got.Missing, []uint64{6}) || got.SealedThrough != 5 {
		t.Errorf("got %+v, want sequence 6 missing and the seal where it was", got)
	}
	if through, _ := s.seal(t); through != 5 {
		t.Errorf("the stored seal is at %d, want 5", through)
	}
}

func TestRun_SealThatIsWrong(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 3)
	for _, c := range []struct{ name, stored, want string }{
		{"no JSON", `{"sealed_thr`, "the entry _audit is damaged"},
		{"no number", `{"sealed_at":"2026-01-01T00:00:00Z"}`, "sealed_through is missing"},
		{"a number below zero", `{"sealed_through":-4}`, "nats kv del main _audit"},
		{"of a newer version", `{"version":2,"sealed_through":1}`, "has version 2, this program knows 1: use the same version everywhere"},
	} {
		s.setSeal(t, c.stored)
		for _, opts := range []audit.Options{{}, {Seal: true}} {
			if r, err := audit.Run(t.Context(), s.Commands(), s.Records(), opts); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %+v, %v; want an error that says %q", c.name, r, err, c.want)
			}
		}
		e, err := s.Records().Read(t.Context(), kvstate.KeyAudit)
		if err != nil || string(e.Raw) != c.stored {
			t.Errorf("%s: it was overwritten: %s, %v", c.name, e.Raw, err)
		}
	}
	s.setSeal(t, `{"sealed_through":2}`)
	if got := s.audit(t, audit.Options{}); !got.Balanced || got.FirstSeq != 3 {
		t.Errorf("sealed by hand: got %+v, want the audit to begin at 3", got)
	}
	s.setSeal(t, `{"closed_through":1}`)
	if got := s.audit(t, audit.Options{}); !got.Balanced || got.FirstSeq != 2 {
		t.Errorf("under the old name: got %+v, want the audit to begin at 2", got)
	}
	s.setSeal(t, `{"sealed_through":99}`)
	got := s.audit(t, audit.Options{Seal: true})
	if got.Balanced || got.Beyond != 99 || got.SealedThrough != 99 {
		t.Errorf("behind the end: got %+v, want it out of balance", got)
	}
	finding(t, got, audit.FindingSetBack, 99, "", "the stream ends at sequence 3 and the books are sealed through 99: an older copy of the stream was put back", "nats kv del main _audit")
	s.setSeal(t, `{"sealed_through":1,"stream_created":"2020-01-01T00:00:00Z"}`)
	got = s.audit(t, audit.Options{Seal: true})
	if got.Balanced || !got.Replaced || got.SealedThrough != 1 {
		t.Errorf("for another stream: got %+v, want it out of balance", got)
	}
	finding(t, got, audit.FindingSetBack, 0, "", "the stream was made anew, or restored from a backup, at ", "nats kv del main _audit")
}

// A seal never passes a command that has no outcome, however many seal at once
// while commands come and go.
func TestRun_SealsAtOnceWhileWorkersRun(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n, sealers = 300, 3
	life, stop := context.WithCancel(t.Context())
	defer stop()
	held := make(chan struct{})
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.ID() == fmt.Sprintf("c-%d", n/2) {
			select {
			case <-held:
			case <-ctx.Done():
			}
		}
		return tallyman.Result{}, nil
	}))
	w, err := s.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.Run(life) }()

	var sealing sync.WaitGroup
	submitted := make(chan struct{})
	for range sealers {
		sealing.Go(func() {
			for last := uint64(0); ; {
				r, err := audit.Run(t.Context(), s.Commands(), s.Records(), audit.Options{Seal: true})
				switch {
				case err != nil:
					t.Errorf("seal: %v", err)
				case !r.Balanced:
					t.Errorf("under load: %s: %v", r.Summary(), r.Findings)
				case r.SealedThrough < last:
					t.Errorf("the seal went back from %d to %d", last, r.SealedThrough)
				case r.SealedThrough >= n/2:
					t.Errorf("sealed through %d, over a command that runs", r.SealedThrough)
				}
				if t.Failed() {
					return
				}
				last = r.SealedThrough
				select {
				case <-submitted:
					return
				default:
				}
			}
		})
	}
	s.submit(t, 1, n)
	close(submitted)
	sealing.Wait()
	close(held)
	s.waitFor(t, n)
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != n {
		t.Errorf("at the end: got %+v, want sealed through %d", got, n)
	}
	if through, _ := s.seal(t); through != n {
		t.Errorf("the stored seal is at %d, want %d", through, n)
	}
}

// An audit that is cut off before its seal has changed nothing, and one that
// hears of another's further seal lets it stand.
func TestRun_CutOffBeforeTheSeal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 4)
	s.work(t, 4)
	ctx, cut := context.WithCancel(t.Context())
	// The list is read last before the seal.
	list := func(yield func(audit.Accepted, error) bool) {
		cut()
		yield(audit.Accepted{ID: "c-1"}, nil)
	}
	if _, err := audit.Run(ctx, s.Commands(), s.Records(), audit.Options{Seal: true, Against: list}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the audit cut off", err)
	}
	if _, e := s.seal(t); e.Revision != 0 {
		t.Errorf("a seal was written: %s", e.Raw)
	}
	faster := func(yield func(audit.Accepted, error) bool) {
		s.setSeal(t, `{"sealed_through":4}`)
		yield(audit.Accepted{ID: "c-1"}, nil)
	}
	slower := func(yield func(audit.Accepted, error) bool) {
		s.setSeal(t, `{"sealed_through":2}`)
		yield(audit.Accepted{ID: "c-1"}, nil)
	}
	for _, list := range []func(func(audit.Accepted, error) bool){slower, faster} {
		if got := s.audit(t, audit.Options{Seal: true, Against: list}); !got.Balanced || got.SealedThrough != 4 {
			t.Errorf("got %+v, want sealed through 4", got)
		}
		if through, _ := s.seal(t); through != 4 {
			t.Errorf("the stored seal is at %d, want 4", through)
		}
	}
}

// A stream that was made anew counts from 1: the seal of the one before says
// nothing about it, not even once it has grown past it.
func TestRun_StreamMadeAnew(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 3)
	s.work(t, 3)
	s.submit(t, 4, 4) // lost with the stream
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 3 {
		t.Fatalf("before: got %+v, want sealed through 3", got)
	}
	if err := s.js.DeleteStream(t.Context(), "main_commands"); err != nil {
		t.Fatal(err)
	}
	if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	s.submit(t, 11, 16)
	got := s.audit(t, audit.Options{Seal: true})
	if got.Balanced || !got.Replaced || got.Beyond != 0 || got.SealedThrough != 3 || got.LastSeq != 6 {
		t.Errorf("got %+v, want it told that the stream is another", got)
	}
	finding(t, got, audit.FindingSetBack, 0, "", "the stream was made anew, or restored from a backup, at ", "the books were sealed through sequence 3 of the one before", `nats kv put main _audit '{"sealed_through":3}'`)
	if want := "the stream is not the one that the books were sealed for"; !strings.Contains(got.Summary(), want) {
		t.Errorf("got summary %q, want %q in it", got.Summary(), want)
	}
}

// A seal is of the same stream after a restart of the server.
func TestRun_SealAfterARestart(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	d.accept(t, 1, 3)
	d.work(t, 3)
	if got := d.audit(t, audit.Options{Seal: true}); got.SealedThrough != 3 {
		t.Fatalf("got %+v, want sealed through 3", got)
	}
	d.sync(t) // takes the server down and up
	d.accept(t, 4, 4)
	if got := d.audit(t, audit.Options{Seal: true}); !got.Balanced || got.Replaced || got.FirstSeq != 4 {
		t.Errorf("got %+v, want it balanced from 4 on", got)
	}
}
