package tallyman

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lookAhead is how much work, in time, a worker may hold beyond what runs: a
// delivery that waits burns its lease, but a slot that is empty for a round
// trip idles. maxAhead bounds it in deliveries. A worker that gets through more
// than that within fastTime may hold as many as it got through, up to fastAhead:
// on a machine whose processors are all busy, whoever waits for one of them needs
// that much to go on with.
const (
	lookAhead = 8 * time.Millisecond
	maxAhead  = 1024
	fastAhead = 4096
	fastTime  = time.Second / 8
)

// slots are the places of running handlers, and the queue in front of them.
type slots struct {
	mu      sync.Mutex
	limit   int
	ready   []*run        // in order of arrival
	suspect []*run        // to run alone, in order of arrival
	solo    time.Time     // since when a suspect runs alone; zero if none does
	running int           // handlers at work that occupy a slot
	coming  bool          // a goroutine was started for a slot and has not asked for its run yet
	stuck   int           // handlers that were given up and have not returned
	fast    time.Duration // fastTime, less where leases are short
	since   time.Time     // begin of the present one
	before  int64         // handlers that had returned then
	lately  int           // handlers that returned in the one before it
	idle    chan struct{} // once closed: replaced, and the old one closed, at every drop of running or held

	closed atomic.Bool // changed under the mutex

	// What every command changes, without the mutex.
	held    atomic.Int64 // deliveries taken and not finished, in whatever stage
	through atomic.Int64 // handlers that have returned
	spell   atomic.Int64 // moving average of a handler's duration in nanoseconds; 0 before the first
}

func (s *slots) init(limit int, lease time.Duration) {
	s.limit = limit
	s.fast = min(fastTime, lease/8)
	s.idle = make(chan struct{})
}

func (s *slots) counts() (held, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.held.Load()), s.running
}

func (s *slots) stuckCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stuck
}

// want is how many deliveries the worker may ask for beyond those it holds.
// Brief says that this rests on its pace, so that what is not there at once
// should not be waited for: the pace may be another one by then.
func (s *slots) want() (most int, brief bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return 0, false
	}
	s.paceLocked(time.Now())
	ahead := s.aheadLocked()
	return s.limit + ahead - int(s.held.Load()), ahead > maxAhead
}

// free is want without brief.
func (s *slots) free() int {
	most, _ := s.want()
	return most
}

// paceLocked notes how many handlers return in s.fast.
func (s *slots) paceLocked(now time.Time) {
	took := now.Sub(s.since)
	if took < s.fast {
		return
	}
	through := s.through.Load()
	s.lately = int(time.Duration(through-s.before) * s.fast / took)
	s.since, s.before = now, through
}

// aheadLocked is what all slots together finish within lookAhead.
func (s *slots) aheadLocked() int {
	spell := time.Duration(s.spell.Load())
	if spell == 0 {
		return 0
	}
	n := time.Duration(s.limit) * lookAhead / max(spell, time.Microsecond)
	most := max(maxAhead, min(s.lately, fastAhead))
	return int(min(n, time.Duration(most)))
}

// take counts n deliveries as held.
func (s *slots) take(n int) { s.held.Add(int64(n)) }

// finish counts a delivery as done with, however it ended.
func (s *slots) finish() {
	s.held.Add(-1)
	if s.closed.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.signalLocked()
	}
}

func (s *slots) signalLocked() {
	if !s.closed.Load() {
		return // nobody waits before the drain
	}
	close(s.idle)
	s.idle = make(chan struct{})
}

// push puts a run in front of the slots. It reports whether the caller is to
// start a goroutine that serves a free slot, and false for ok once the slots
// are closed. One goroutine at a time is on its way: the next one is started by
// it (see next), so that a burst of short handlers does not cost one each.
func (s *slots) push(r *run) (start, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return false, false
	}
	if r.suspect {
		r.since = time.Now()
		s.suspect = append(s.suspect, r)
		start = s.running == 0
	} else {
		s.ready = append(s.ready, r)
		start = s.running < s.limit && !s.coming && s.solo.IsZero() && len(s.suspect) == 0
	}
	if start {
		s.running++
		s.coming = true
	}
	return start, true
}

// next returns what to run next on a slot, or nil if the slot is given up, and
// whether the caller is to start a goroutine for one more. Came says that the
// caller was started for the slot and asks for the first time.
//
// A suspect runs alone: what is ready waits until the slots are empty and the
// suspect is through. So a command that kills its worker takes nobody with it
// on its last attempt, and those that were only beside it complete. If that
// takes longer than patience, it runs beside the others after all.
func (s *slots) next(patience time.Duration, came bool) (r *run, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if came {
		s.coming = false
	}
	s.solo = time.Time{} // its goroutine was the only one, or has had its time alone
	switch {
	case len(s.suspect) > 0 && s.running == 1:
		s.solo = time.Now()
		r = shift(&s.suspect)
		return r, false
	case len(s.suspect) > 0 && time.Since(s.suspect[0].since) >= patience:
		r = shift(&s.suspect)
	case len(s.suspect) == 0 && len(s.ready) > 0:
		r = shift(&s.ready)
	default:
		s.running--
		s.signalLocked()
		return nil, false
	}
	if more = s.running < s.limit && !s.coming && len(s.ready)+len(s.suspect) > 0; more {
		s.running++
		s.coming = true
	}
	return r, more
}

// nudge takes a free slot if something is ready, for the caller to serve. A
// suspect that has been alone for patience is so no longer.
func (s *slots) nudge(patience time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.solo.IsZero() && time.Since(s.solo) >= patience {
		s.solo = time.Time{}
	}
	if s.closed.Load() || !s.solo.IsZero() || s.running >= s.limit || len(s.ready)+len(s.suspect) == 0 {
		return false
	}
	s.running++
	return true
}

// shift takes the first of a queue.
func shift(queue *[]*run) *run {
	q := *queue
	r := q[0]
	q[0] = nil
	if q = q[1:]; len(q) == 0 {
		q = nil // let go of the array
	}
	*queue = q
	return r
}

// ran notes how long a handler took. Of two that end at once, one may not count.
func (s *slots) ran(d time.Duration) {
	s.through.Add(1)
	spell := time.Duration(s.spell.Load())
	if spell == 0 {
		spell = d
	}
	s.spell.Store(int64(max(spell+(d-spell)/16, 1)))
}

// giveUp frees the slot of a handler that does not return.
func (s *slots) giveUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck++
}

// returned notes that a handler that was given up came back after all.
func (s *slots) returned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck--
}

// close ends the queue and returns what had not begun.
func (s *slots) close() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed.Store(true)
	left := slices.Concat(s.ready, s.suspect)
	s.ready, s.suspect = nil, nil
	return left
}

func (s *slots) waitRunning(ctx context.Context) { s.wait(ctx, func() bool { return s.running == 0 }) }
func (s *slots) waitHeld(ctx context.Context)    { s.wait(ctx, func() bool { return s.held.Load() == 0 }) }

func (s *slots) wait(ctx context.Context, reached func() bool) {
	for {
		s.mu.Lock()
		done, idle := reached(), s.idle
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return
		}
	}
}
