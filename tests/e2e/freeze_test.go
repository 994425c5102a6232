//go:build unix

package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
)

// sawEvent reports whether this very worker saw an event of a command.
func (s *stand) sawEvent(t *testing.T, p *process, id, name string) bool {
	t.Helper()
	for _, l := range s.of(t, "event", id) {
		if l.detail == name && l.pid == strconv.Itoa(p.pid) {
			return true
		}
	}
	return false
}

// began waits until an attempt has begun, and returns its line.
func (s *stand) began(t *testing.T, id string, attempt int) line {
	t.Helper()
	var found line
	await(t, fmt.Sprintf("attempt %d of %s to begin", attempt, id), func() bool {
		for _, l := range s.of(t, "begin", id) {
			if l.attempt == attempt {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// stays holds the command to being where its owner needs it: in the stream,
// and not delivered to anyone else.
func (s *stand) stays(t *testing.T, id string, begun int) {
	t.Helper()
	q, err := s.pool.Commands().Queue(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.pool.Commands().State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.Messages != 1 || q.Outstanding != 1 {
		t.Errorf("%s: %d commands in the stream, %d of them delivered; want 1 and 1", id, state.Messages, q.Outstanding)
	}
	if got := len(s.of(t, "begin", id)); got != begun {
		t.Errorf("%s began %d times, want %d", id, got, begun)
	}
}

func TestFreeze_PastTheLease(t *testing.T) {
	t.Parallel()
	t.Run("handler that heeds its context is ended", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		a := s.worker(t)
		s.submit(t, "gate", "z", "gate")
		s.began(t, "z", 1)
		a.freeze(t)
		b := s.worker(t)
		s.began(t, "z", 2)
		a.thaw(t)
		await(t, "the thawed worker to give up", func() bool { return s.sawEvent(t, a, "z", "refused") })
		s.stays(t, "z", 2)
		s.open(t, "gate")
		s.receiptBy(t, "z", b, 2)
		s.settle(t)
		checkBooks(t, s)
	})
	t.Run("zombie returns while the owner works", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		// It has all the time to come back on its own.
		a := s.worker(t, "TALLYMAN_GRACE_MS=60000")
		s.submit(t, "zombie", "z", "gate")
		s.began(t, "z", 1)
		a.freeze(t)
		b := s.worker(t)
		s.began(t, "z", 2)
		a.thaw(t)
		s.open(t, "gate-1")
		s.awaitLine(t, "fenced", "z")
		await(t, "the zombie's result to be refused", func() bool { return s.sawEvent(t, a, "z", "refused") })
		s.stays(t, "z", 2)
		s.open(t, "gate-2")
		s.receiptBy(t, "z", b, 2)
		s.settle(t)
		checkBooks(t, s)
	})
	t.Run("zombie returns after the owner's receipt", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		a := s.worker(t, "TALLYMAN_GRACE_MS=60000")
		s.submit(t, "zombie", "z", "gate")
		s.began(t, "z", 1)
		a.freeze(t)
		b := s.worker(t)
		s.began(t, "z", 2)
		s.open(t, "gate-2")
		r := s.receiptBy(t, "z", b, 2)
		s.settle(t)
		a.thaw(t)
		s.open(t, "gate-1")
		await(t, "the zombie's result to be refused", func() bool { return s.sawEvent(t, a, "z", "refused") })
		if again := s.receiptBy(t, "z", b, 2); !again.At.Equal(r.At) {
			t.Errorf("the receipt of %v became one of %v", r.At, again.At)
		}
		checkBooks(t, s)
	})
	t.Run("worker frozen between effect and receipt", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		a := s.worker(t, "TALLYMAN_FAILPOINT=after-handler=stop:z:"+s.path("stopped"))
		s.submit(t, "zombie", "z", "gate")
		s.began(t, "z", 1)
		s.open(t, "gate-1")
		await(t, "the worker to freeze", func() bool { return a.state(t) == 'T' })
		b := s.worker(t)
		s.began(t, "z", 2)
		a.thaw(t)
		await(t, "the late receipt to be refused", func() bool { return s.sawEvent(t, a, "z", "refused") })
		s.stays(t, "z", 2)
		s.open(t, "gate-2")
		s.receiptBy(t, "z", b, 2)
		s.settle(t)
		checkBooks(t, s)
	})
	t.Run("worker frozen between receipt and ack", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		a := s.worker(t, "TALLYMAN_FAILPOINT=before-ack=stop:z:"+s.path("stopped"))
		s.submit(t, "log", "z", "x")
		await(t, "the worker to freeze", func() bool { return a.state(t) == 'T' })
		s.receiptBy(t, "z", a, 1)
		b := s.worker(t)
		await(t, "the other worker to absorb it", func() bool { return s.sawEvent(t, b, "z", "absorbed") })
		s.settle(t)
		a.thaw(t)
		await(t, "the late ack", func() bool { return s.sawEvent(t, a, "z", "completed") })
		s.receiptBy(t, "z", a, 1)
		checkBooks(t, s)
	})
}

// receiptBy waits for a receipt and says whose it must be.
func (s *stand) receiptBy(t *testing.T, id string, p *process, attempt int) tallyman.Receipt {
	t.Helper()
	r := s.receipt(t, id)
	if !ownedBy(r.Owner, strconv.Itoa(p.pid)) || r.Attempt != attempt {
		t.Errorf("receipt of %s: got attempt %d by %s, want attempt %d by process %d", id, r.Attempt, r.Owner, attempt, p.pid)
	}
	return r
}

func TestLongRunner_AtTenTimesTheLeaseRunsOnce(t *testing.T) {
	t.Parallel()
	settings := short
	settings.Lease, settings.MaxAttempts = time.Second, 100
	s := newStand(t, settings)
	s.worker(t)
	s.worker(t)
	s.submit(t, "slow", "long", "10s")
	r := s.receipt(t, "long")
	s.settle(t)
	// On a machine that stalls for longer than the lease it may be lost; then it must show.
	lost := s.event(t, "long", "lease_lost") || s.event(t, "long", "dropped")
	if got := len(s.of(t, "begin", "long")); !lost && (got != 1 || r.Attempt != 1) {
		t.Errorf("it began %d times without a lost lease, and got the receipt of attempt %d; want once", got, r.Attempt)
	}
	checkBooks(t, s)
}

func TestRecovery_OfTwoWorkersExactlyOneTakesOver(t *testing.T) {
	t.Parallel()
	const n = 50
	s := newStand(t, short)
	a := s.worker(t, "TALLYMAN_CONCURRENCY=50")
	for i := range n {
		s.submit(t, "gate", "r-"+strconv.Itoa(i), "gate")
	}
	await(t, "all to begin", func() bool {
		for i := range n {
			if !s.has("begin", "r-"+strconv.Itoa(i), "") {
				return false
			}
		}
		return true
	})
	a.kill()
	s.workerSoon(t, "TALLYMAN_CONCURRENCY=50")
	s.workerSoon(t, "TALLYMAN_CONCURRENCY=50")
	for i := range n {
		s.began(t, "r-"+strconv.Itoa(i), 2)
	}
	s.open(t, "gate")
	for i := range n {
		id := "r-" + strconv.Itoa(i)
		if r := s.receipt(t, id); r.Attempt != 2 {
			t.Errorf("%s: got the receipt of attempt %d, want 2", id, r.Attempt)
		}
		if got := len(s.of(t, "begin", id)); got != 2 {
			t.Errorf("%s began %d times, want 2", id, got)
		}
	}
	s.settle(t)
	checkBooks(t, s)
}
