package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// lingering checks that an audit finds just these sequences acked and still in
// the stream, and nothing else amiss, and returns its findings.
func lingering(t *testing.T, got audit.Report, want ...uint64) []audit.Finding {
	t.Helper()
	if !slices.Equal(got.Lingering, want) || got.LingeringCount != uint64(len(want)) || got.FindingCount != uint64(len(want)) {
		t.Fatalf("got %+v, want sequences %v lingering and no more", got, want)
	}
	if got.Balanced != (len(want) == 0) {
		t.Errorf("balanced: got %v with %d lingering", got.Balanced, len(want))
	}
	for i, f := range got.Findings {
		if f.What != audit.FindingLingering || f.Seq != want[i] || !strings.Contains(f.Remedy, "nats consumer rm main_commands default") {
			t.Errorf("got %+v, want a finding about sequence %d that says how to have its queue delivered again", f, want[i])
		}
	}
	return got.Findings
}

// deliverAnew is the remedy: the queue is delivered from the beginning.
func (s *scene) deliverAnew(t *testing.T) {
	t.Helper()
	if err := s.commands(t).DeleteConsumer(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{Queues: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
}

// drain runs a worker until the stream is empty.
func (s *scene) drain(t *testing.T) {
	t.Helper()
	life, stop := context.WithCancel(t.Context())
	w, err := s.NewWorker(tallyman.WorkerConfig{Mux: echo()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(life) }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	pooltest.Await(t, ctx, "an empty stream", func() bool {
		state, err := s.Commands().State(ctx)
		return err == nil && state.Messages == 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// A server that dies after its consumer has noted an ack and before the message
// has left the stream finds it there when it comes back, and delivers it to nobody.
func TestRun_AckedAndStillInTheStream(t *testing.T) {
	t.Parallel()
	const messages = "main_commands/msgs" // without what the consumer has noted
	t.Run("with its outcome", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		d.accept(t, 1, 3)
		d.sync(t)
		d.work(t, 3) // the second is parked
		lingering(t, d.audit(t, audit.Options{}))
		d.setBack(t, messages)
		for _, f := range lingering(t, d.audit(t, audit.Options{Seal: true}), 1, 2, 3) {
			if !strings.Contains(f.Remedy, "nats stream rmm main_commands SEQUENCE") || f.ID != "" {
				t.Errorf("got %+v, want how to take it out, and nothing that tells it from the others", f)
			}
		}
		if err := d.commands(t).DeleteMsg(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		lingering(t, d.audit(t, audit.Options{}), 2, 3)
		d.deliverAnew(t)
		d.drain(t)
		got := d.audit(t, audit.Options{Seal: true})
		lingering(t, got)
		if got.Completed != 2 || got.Parked != 1 || got.SealedThrough != 3 {
			t.Errorf("got %+v, want the outcomes that there were, and all of it sealed", got)
		}
	})
	t.Run("below the seal", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		d.accept(t, 1, 3)
		d.sync(t)
		d.work(t, 3)
		if got := d.audit(t, audit.Options{Seal: true}); got.SealedThrough != 3 {
			t.Fatalf("got %+v, want the books sealed through 3", got)
		}
		d.setBack(t, messages)
		lingering(t, d.audit(t, audit.Options{}), 1, 2, 3)
	})
	t.Run("without an outcome", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		d.accept(t, 1, 3)
		d.sync(t)
		d.work(t, 3)
		d.setBack(t, messages, "KV_main")
		got := d.audit(t, audit.Options{})
		for i, f := range lingering(t, got, 1, 2, 3) {
			if id := fmt.Sprintf("c-%d", i+1); f.ID != id || !strings.Contains(f.Cause, "without an outcome") {
				t.Errorf("got %+v, want that %s has no outcome", f, id)
			}
		}
		if got.Pending != 3 {
			t.Errorf("got %d pending, want 3", got.Pending)
		}
		d.deliverAnew(t)
		d.drain(t)
		lingering(t, d.audit(t, audit.Options{}))
	})
	t.Run("by hand, where commands are swept out", func(t *testing.T) {
		t.Parallel()
		s := newSceneWith(t, tallyman.Settings{Removal: tallyman.RemovalSweep})
		s.submit(t, 1, 1)
		cons, err := s.js.Consumer(t.Context(), "main_commands", "default")
		if err != nil {
			t.Fatal(err)
		}
		m, err := cons.Next(jetstream.FetchMaxWait(10 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.DoubleAck(t.Context()); err != nil {
			t.Fatal(err)
		}
		if f := lingering(t, s.audit(t, audit.Options{}), 1)[0]; f.ID != "c-1" {
			t.Errorf("got %+v, want it about c-1", f)
		}
	})
	for name, edit := range map[string]func(*jetstream.ConsumerConfig){
		"given up at a max deliver": func(c *jetstream.ConsumerConfig) { c.MaxDeliver, c.AckWait = 1, 50*time.Millisecond },
		"passed over by a filter":   func(c *jetstream.ConsumerConfig) { c.FilterSubject = "main.commands.default.echo.c-2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.submit(t, 1, 2)
			cons, err := s.js.Consumer(t.Context(), "main_commands", "default")
			if err != nil {
				t.Fatal(err)
			}
			cfg := cons.CachedInfo().Config
			edit(&cfg)
			if cons, err = s.js.UpdateConsumer(t.Context(), "main_commands", cfg); err != nil {
				t.Fatal(err)
			}
			left := []uint64{1}
			for m, err := cons.Next(jetstream.FetchMaxWait(time.Second)); err == nil; m, err = cons.Next(jetstream.FetchMaxWait(time.Second)) {
				if cfg.MaxDeliver == 1 {
					left = []uint64{1, 2}
					continue
				}
				s.write(t, &kvstate.Record{ID: "c-2", Kind: "echo", State: kvstate.Completed, Seqs: []uint64{2}, Attempt: 1, Digest: dedupe.Digest("echo", nil)})
				if err := m.DoubleAck(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			lingering(t, s.audit(t, audit.Options{}), left...)
			s.deliverAnew(t)
			s.drain(t)
			lingering(t, s.audit(t, audit.Options{}))
		})
	}
	t.Run("a consumer that passes over commands proves nothing", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 2)
		stream := s.commands(t)
		if err := stream.DeleteConsumer(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			Durable: "default", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "main.commands.default.>", MaxDeliver: 1,
		}); err != nil {
			t.Fatal(err)
		}
		if got := s.audit(t, audit.Options{}); !got.Balanced || got.Pending != 2 {
			t.Errorf("got %+v, want two pending and nothing amiss", got)
		}
	})
}

// TestRun_AcksUnderWayAreNotFindings audits again and again while workers ack.
func TestRun_AcksUnderWayAreNotFindings(t *testing.T) {
	t.Parallel()
	for _, removal := range []tallyman.Removal{tallyman.RemovalAck, tallyman.RemovalSweep} {
		t.Run(string(removal), func(t *testing.T) {
			t.Parallel()
			s := newSceneWith(t, tallyman.Settings{Removal: removal})
			life, stop := context.WithCancel(t.Context())
			w, err := s.NewWorker(tallyman.WorkerConfig{Mux: echo()})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 2)
			go func() { ended <- w.Run(life) }()
			go func() {
				for n := 10; ; n++ {
					_, err := s.Submit(life, tallyman.Command{ID: fmt.Sprintf("c-%d", n), Kind: "echo"})
					if life.Err() != nil {
						err = nil
					}
					if err != nil || life.Err() != nil {
						ended <- err
						return
					}
				}
			}()
			for range 20 {
				lingering(t, s.audit(t, audit.Options{}))
			}
			stop()
			if err := errors.Join(<-ended, <-ended); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What a stream stored under another subject, before that was put right, lies there, and no
// queue delivers it: its id may be accepted and never run.
func TestRun_StoredUnderAnotherSubject(t *testing.T) {
	t.Parallel()
	for _, removal := range []tallyman.Removal{tallyman.RemovalAck, tallyman.RemovalSweep} {
		t.Run(string(removal), func(t *testing.T) {
			t.Parallel()
			s := newSceneWith(t, tallyman.Settings{Removal: removal})
			cfg := s.commands(t).CachedInfo().Config
			cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "main.commands.*.*.*", Destination: "moved.{{wildcard(3)}}"}
			if _, err := s.js.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			s.submit(t, 1, 1)
			if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			got := s.audit(t, audit.Options{})
			if !slices.Equal(got.Lingering, []uint64{1}) || got.Balanced || len(got.Findings) != 1 || got.Findings[0].Subject != "moved.c-1" {
				t.Fatalf("got %+v, want sequence 1 lingering under moved.c-1", got)
			}

			// The remedy.
			if want := "nats stream rmm main_commands 1, and write it off with: nats kv put main _absorbed/1"; !strings.Contains(got.Findings[0].Remedy, want) {
				t.Errorf("got %q, want it to say %q", got.Findings[0].Remedy, want)
			}
			if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			kv, err := s.js.KeyValue(t.Context(), "main")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kv.PutString(t.Context(), "_absorbed/1", "submitted again"); err != nil {
				t.Fatal(err)
			}
			if got := s.audit(t, audit.Options{}); !got.Balanced {
				t.Errorf("got %+v, want books that balance", got)
			}
		})
	}
}
