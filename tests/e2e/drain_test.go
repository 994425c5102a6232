//go:build unix

package e2e

import (
	"errors"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestDrain(t *testing.T) {
	t.Parallel()
	// A lease that does not run out here: what comes again was given back.
	slow := short
	slow.Lease = 5 * time.Minute
	t.Run("lets handlers finish", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, slow)
		a := s.worker(t, "TALLYMAN_DRAIN_MS=60000")
		s.submit(t, "gate", "d", "gate")
		s.began(t, "d", 1)
		a.signal(t, syscall.SIGTERM)
		await(t, "the drain to begin", func() bool { return s.logged(t, "worker drains") })
		s.submit(t, "log", "late", "x")
		s.open(t, "gate")
		state := a.waitEnd(t, "it was to drain")
		if !state.Success() {
			t.Errorf("the worker ended with %v, want success", state)
		}
		s.receiptBy(t, "d", a, 1)
		b := s.worker(t)
		s.receiptBy(t, "late", b, 1)
		s.settle(t)
		checkBooks(t, s)
	})
	t.Run("hands back what runs on and burns no attempt", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, slow)
		a := s.worker(t, "TALLYMAN_DRAIN_MS=100", "TALLYMAN_CONCURRENCY=2")
		const n = 6 // more than have a slot
		for i := range n {
			s.submit(t, "gate", "d-"+strconv.Itoa(i), "gate")
		}
		s.began(t, "d-0", 1)
		s.began(t, "d-1", 1)
		a.signal(t, syscall.SIGTERM)
		if state := a.waitEnd(t, "it was to drain"); !state.Success() {
			t.Errorf("the worker ended with %v, want success", state)
		}
		s.open(t, "gate")
		b := s.worker(t)
		for i := range n {
			s.receiptBy(t, "d-"+strconv.Itoa(i), b, 1)
		}
		s.settle(t)
		checkBooks(t, s)
	})
	t.Run("is cut short by a second signal", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		a := s.worker(t, "TALLYMAN_DRAIN_MS=60000")
		s.submit(t, "gate", "d", "gate")
		s.began(t, "d", 1)
		a.signal(t, syscall.SIGTERM)
		await(t, "the drain to begin", func() bool { return s.logged(t, "worker drains") })
		a.signal(t, syscall.SIGTERM)
		if state := a.waitEnd(t, "it got a second signal"); state.Success() {
			t.Error("the worker says that it ended in order")
		}
		b := s.worker(t)
		s.began(t, "d", 2)
		s.open(t, "gate")
		s.receiptBy(t, "d", b, 2)
		s.settle(t)
		checkBooks(t, s)
	})
}

func TestPoison_IsParkedAndItsNeighboursComplete(t *testing.T) {
	t.Parallel()
	settings := short
	settings.Lease = 2 * time.Second // a delivery that lost it before it ran counts as an attempt
	s := newStand(t, settings)
	s.submit(t, "poison", "pill", "x")
	// They are fetched together with the pill, and die in its company.
	ids := make([]string, 10)
	for i := range ids {
		ids[i] = "n-" + strconv.Itoa(i)
		s.submit(t, "log", ids[i], "x")
	}
	w, deaths := s.workerSoon(t), 0
	await(t, "the pill to be parked", func() bool {
		if !w.alive() {
			deaths++
			w = s.workerSoon(t)
		}
		r, err := s.pool.Find(t.Context(), "pill")
		return err == nil && r.State == kvstate.Parked
	})
	r, err := s.pool.Wait(t.Context(), "pill")
	if !errors.Is(err, tallyman.ErrParked) || r.Reason != kvstate.ReasonExhausted || r.Attempt != settings.MaxAttempts {
		t.Errorf("got %s as %q after %d attempts, %v; want parked as exhausted after %d", r.State, r.Reason, r.Attempt, err, settings.MaxAttempts)
	}
	if got := len(s.of(t, "begin", "pill")); got != settings.MaxAttempts || deaths != got {
		t.Errorf("it began %d times and took %d workers with it, want %d", got, deaths, settings.MaxAttempts)
	}
	for _, id := range ids {
		s.receipt(t, id)
	}
	s.settle(t)
	checkBooks(t, s)
}
