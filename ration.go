package tallyman

import (
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
	nudged  time.Time // when the first of them was woken, zero if it was not
	sum     int       // of charge over all
	coming  int       // of asked over those with a backlog: these come at once
}

type ration struct {
	asked   int // on their way
	backlog bool
	waits   bool // it is in waiting
}

// charge is what counts against what is free.
func (r ration) charge() int { return max(r.asked-1, 0) }

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
	s.bookLocked(i, asked, behind > 0)
	if !able {
		s.leaveLocked(i)
		s.nudgeLocked()
		return 0, false
	}
	free := s.free()
	listen := max(free/(4*len(s.of)), 1)
	rest := int(min(behind, 1<<30)) - asked // of the backlog, not asked for yet
	if asked > 0 && rest <= asked {
		s.leaveLocked(i) // what is on its way will do
		s.nudgeLocked()
		return 0, false
	}
	room, first := free-s.sum, len(s.waiting) == 0 || s.waiting[0] == i
	switch {
	case free <= 0:
	case rest <= 0:
		n = max(min(listen, room), 1)
	case first && s.worthLocked(room):
		n = min(max(rest, listen), room)
		brief = n > listen
	case first && s.coming == 0:
		n = 1 // those that listen keep what is free
	}
	if n <= 0 {
		s.joinLocked(i)
	} else {
		s.leaveLocked(i)
		s.bookLocked(i, asked+n, behind > 0)
	}
	s.nudgeLocked()
	return n, brief
}

// freed tells that the worker may be able to take on more.
func (s *rations) freed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nudgeLocked()
}

// out reports whether fetcher i has asked for anything that has not come.
func (s *rations) out(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[i].asked > 0
}

func (s *rations) bookLocked(i, asked int, backlog bool) {
	r := &s.of[i]
	s.sum -= r.charge()
	if r.backlog {
		s.coming -= r.asked
	}
	r.asked, r.backlog = asked, backlog
	s.sum += r.charge()
	if backlog {
		s.coming += asked
	}
}

// worthLocked reports whether room is worth a pull: all that is to be had, or
// half of what will be once what is on its way has come.
func (s *rations) worthLocked(room int) bool {
	return room > 0 && (s.coming == 0 || room >= s.coming)
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

// nudgeLocked wakes the fetcher whose turn it is, if that is worth its while.
func (s *rations) nudgeLocked() {
	if len(s.waiting) == 0 {
		return
	}
	free := s.free()
	if free <= 0 || s.coming > 0 && !s.worthLocked(free-s.sum) {
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
