package tallyman

import (
	"math"
	"slices"
	"sync"
	"time"
)

// rations shares out what a worker can take on among its fetchers, one for
// each queue and shard. Equal shares would make many small pulls, each of which
// costs as much as a large one. So every fetcher has a small pull open that
// listens, and those that know of a backlog ask in turn, each for as much as is
// there and free: as many pulls as one fetcher would make of the same commands.
//
// What is on its way never exceeds what is free, but for one delivery for each
// fetcher, so that with more fetchers than slots none is deaf.
type rations struct {
	free func() int      // how many deliveries the worker can take on, those on their way included
	wake func(index int) // makes the fetcher ask again

	mu      sync.Mutex
	of      []ration
	waiting []int     // fetchers that were refused, first come first
	nudged  time.Time // when the first of them was woken and has not asked since; zero if it was not
	asked   int       // sum over all
	out     int       // how many have asked for something
	coming  int       // sum over those with a backlog: these come at once
}

type ration struct {
	asked   int  // on their way
	rest    int  // of the backlog, not asked for
	backlog bool // something waited behind the last delivery
	waits   bool // it is in waiting
}

// nudgeTime is how soon a fetcher that was woken must have asked. Until then
// nobody else may; one that is busy finding out why its pulls fail loses its turn.
const nudgeTime = 20 * time.Millisecond

func newRations(n int, free func() int, wake func(int)) *rations {
	return &rations{free: free, wake: wake, of: make([]ration, n)}
}

// more says how many deliveries fetcher i may ask for now, with asked of them
// on their way and so many commands behind the last that came. Brief says that
// they should be there: what does not come soon is to be given back.
func (s *rations) more(i, asked int, behind uint64, able bool) (n int, brief bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.nudgeLocked()
	s.bookLocked(i, asked, int(min(behind, math.MaxInt32)))
	if len(s.waiting) > 0 && s.waiting[0] == i {
		s.nudged = time.Time{}
	}
	if rest := s.of[i].rest; !able || asked > 0 && rest <= asked {
		s.leaveLocked(i) // it cannot ask, or what is on its way will do
		return 0, false
	}
	if n, brief = s.grantLocked(i, s.free()); n == 0 {
		s.joinLocked(i)
		return 0, false
	}
	s.leaveLocked(i)
	s.bookLocked(i, asked+n, int(min(behind, math.MaxInt32)))
	return n, brief
}

// grantLocked is what fetcher i would get now.
func (s *rations) grantLocked(i, free int) (n int, brief bool) {
	r := s.of[i]
	room := free + s.out - s.asked // one for each does not count
	listen := max(free/(4*len(s.of)), 1)
	first := len(s.waiting) == 0 || s.waiting[0] == i
	switch {
	case free <= 0:
	case r.rest > 0 && !first:
	case r.rest > 0 && room > 0 && (s.coming == 0 || room >= s.coming): // half of what there will be once all has come
		n = min(max(r.rest, listen), room)
		return n, n > listen
	case r.rest > 0 && s.coming > 0:
	case r.asked == 0 && s.asked < free+len(s.of): // to listen; or those that listen keep what is free
		return max(min(listen, room), 1), false
	}
	return 0, false
}

// freed tells that the worker may be able to take on more.
func (s *rations) freed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nudgeLocked()
}

// asks reports whether fetcher i has asked for anything that has not come.
func (s *rations) asks(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[i].asked > 0
}

func (s *rations) bookLocked(i, asked, behind int) {
	r := &s.of[i]
	s.countLocked(*r, -1)
	r.asked, r.rest, r.backlog = asked, behind-asked, behind > 0
	s.countLocked(*r, 1)
}

func (s *rations) countLocked(r ration, sign int) {
	s.asked += sign * r.asked
	if r.asked > 0 {
		s.out += sign
	}
	if r.backlog {
		s.coming += sign * r.asked
	}
}

func (s *rations) joinLocked(i int) {
	if !s.of[i].waits {
		s.of[i].waits = true
		s.waiting = append(s.waiting, i)
	}
}

func (s *rations) leaveLocked(i int) {
	if !s.of[i].waits {
		return
	}
	s.of[i].waits = false
	at := slices.Index(s.waiting, i)
	s.waiting = slices.Delete(s.waiting, at, at+1)
	if at == 0 {
		s.nudged = time.Time{}
	}
}

// nudgeLocked wakes the fetcher whose turn it is, if it would get something.
func (s *rations) nudgeLocked() {
	if len(s.waiting) == 0 {
		return
	}
	free := s.free()
	if n, _ := s.grantLocked(s.waiting[0], free); n == 0 {
		return
	}
	now := time.Now()
	if !s.nudged.IsZero() {
		if now.Sub(s.nudged) < nudgeTime {
			return
		}
		first := s.waiting[0]
		s.waiting = append(slices.Delete(s.waiting, 0, 1), first)
	}
	s.nudged = now
	s.wake(s.waiting[0])
}
