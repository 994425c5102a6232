package desk

import (
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/stream"
)

func TestPause(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Lease = 5 * time.Second // outlasts a machine that stalls, with heartbeats
	r := newRig(t, settings)
	s := newSeen(false)
	r.work(t, s)
	r.submit(t, tallyman.Command{ID: "running", Kind: "long"})
	r.submit(t, tallyman.Command{ID: "through", Kind: "long"})
	<-s.running
	<-s.running
	until, err := r.desk.Pause(r.ctx, ann, "default", 0)
	if err != nil || time.Until(until) < 50*365*24*time.Hour {
		t.Fatalf("got until %v, %v", until, err)
	}
	queue := func() stream.Queue {
		t.Helper()
		q, err := r.Commands().Queue(r.ctx, "default")
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	if q := queue(); !q.Paused || !q.PausedUntil.Equal(until) {
		t.Errorf("got %+v, want it paused until %v", q, until)
	}
	if p, err := r.desk.LastPause(r.ctx, "default"); err != nil || p.By != "ann" || p.Why != ann.Why || !p.Until.Equal(until) || p.ResumedBy != "" {
		t.Errorf("got %+v, %v", p, err)
	}
	r.submit(t, tallyman.Command{ID: "next", Kind: "echo"})

	t.Run("creating the pool again leaves it paused", func(t *testing.T) {
		if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{Queues: []string{"default", "slow"}}); err != nil {
			t.Fatal(err)
		}
		if q := queue(); !q.Paused || !q.PausedUntil.Equal(until) {
			t.Errorf("got %+v, want it paused until %v", q, until)
		}
		if q, err := r.Commands().Queue(r.ctx, "slow"); err != nil || q.Paused {
			t.Errorf("the new queue: got %+v, %v, want it running", q, err)
		}
	})
	t.Run("a running handler keeps its lease", func(t *testing.T) {
		// Two leases long it is neither told to stop nor taken over.
		select {
		case cause := <-s.ended:
			t.Errorf("its context ended: %v", cause)
		case <-s.running:
			t.Error("it began a second time")
		case <-time.After(2 * settings.Lease):
		}
		if _, err := r.Find(r.ctx, "next"); !errors.Is(err, tallyman.ErrNotFound) {
			t.Errorf("the next command: got %v, want nobody to have touched it", err)
		}
		if _, err := r.desk.Cancel(r.ctx, ann, "running"); err != nil {
			t.Error(err)
		}
		if cause := <-s.ended; !errors.Is(cause, tallyman.ErrCancelled) {
			t.Errorf("its context ended for %v, want %v", cause, tallyman.ErrCancelled)
		}
	})
	t.Run("resumed, it goes on", func(t *testing.T) {
		for range 2 {
			if err := r.desk.Resume(r.ctx, bob, "default"); err != nil {
				t.Fatal(err)
			}
		}
		if q := queue(); q.Paused || !q.PausedUntil.IsZero() {
			t.Errorf("got %+v, want it running", q)
		}
		if p, err := r.desk.LastPause(r.ctx, "default"); err != nil || p.By != "ann" || p.ResumedBy != "bob" || p.ResumedAt == nil {
			t.Errorf("got %+v, %v", p, err)
		}
		if _, err := r.Wait(r.ctx, "next"); err != nil {
			t.Error(err)
		}
		select {
		case cause := <-s.ended:
			t.Errorf("the context of what ran through the pause ended: %v", cause)
		case <-s.running:
			t.Error("what ran through the pause began a second time")
		case <-time.After(settings.Lease):
		}
		if _, err := r.desk.Cancel(r.ctx, ann, "through"); err != nil {
			t.Error(err)
		}
		<-s.ended
	})
	t.Run("a pause ends by itself", func(t *testing.T) {
		if _, err := r.desk.Pause(r.ctx, ann, "default", 500*time.Millisecond); err != nil && !errors.Is(err, stream.ErrPassed) { // on a machine that stalls
			t.Fatal(err)
		}
		r.submit(t, tallyman.Command{ID: "later", Kind: "echo"})
		if _, err := r.Wait(r.ctx, "later"); err != nil {
			t.Error(err)
		}
	})
	t.Run("one that is over by the server's clock is none", func(t *testing.T) {
		before, err := r.desk.LastPause(r.ctx, "default")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.desk.Pause(r.ctx, bob, "default", time.Nanosecond); !errors.Is(err, stream.ErrPassed) {
			t.Errorf("got %v, want %v", err, stream.ErrPassed)
		}
		if after, err := r.desk.LastPause(r.ctx, "default"); err != nil || after != before {
			t.Errorf("got %+v, %v on record, want what was there", after, err)
		}
	})
	t.Run("what cannot be paused is named", func(t *testing.T) {
		if _, err := r.desk.Pause(r.ctx, ann, "nowhere", 0); !errors.Is(err, stream.ErrNoQueue) {
			t.Errorf("got %v, want %v", err, stream.ErrNoQueue)
		}
		if err := r.desk.Resume(r.ctx, ann, "nowhere"); !errors.Is(err, stream.ErrNoQueue) {
			t.Errorf("got %v, want %v", err, stream.ErrNoQueue)
		}
		if _, err := r.desk.Pause(r.ctx, ann, "default", -time.Second); !errors.Is(err, ErrAct) {
			t.Errorf("got %v, want %v", err, ErrAct)
		}
		if _, err := r.desk.Pause(r.ctx, Act{}, "default", 0); !errors.Is(err, ErrAct) {
			t.Errorf("got %v, want %v", err, ErrAct)
		}
		if _, err := r.desk.Pause(r.ctx, ann, "a.b", 0); !errors.Is(err, tallyman.ErrInvalidName) {
			t.Errorf("got %v, want %v", err, tallyman.ErrInvalidName)
		}
	})
	r.emptied(t)
	r.balanced(t)
}
