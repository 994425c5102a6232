package lease

import (
	"context"
	"sync"
	"time"
)

// Keeper watches over all leases of a worker.
type Keeper struct {
	terms Terms
	beat  func(due []*Lease)

	mu   sync.Mutex
	head *Lease // doubly linked, in no order that matters
}

// NewKeeper returns a keeper. Beat is asked to send heartbeats for the leases
// given and to call Lease.Confirm for those that were confirmed, or Lease.Lose
// where the record shows another owner. It runs on the keeper's goroutine and
// must not block.
func NewKeeper(terms Terms, beat func(due []*Lease)) *Keeper {
	return &Keeper{terms: terms, beat: beat}
}

// HoldIn begins to keep a lease that counts from start, in a zero Lease of the
// caller's, such as a field of the holder.
func (k *Keeper) HoldIn(l *Lease, holder Holder, start time.Time) {
	l.Holder, l.terms = holder, k.terms
	l.start, l.nextBeat = start, k.terms.beatAfter(start)
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.next = k.head; l.next != nil {
		l.next.prev = l
	}
	k.head = l
}

// Release ends a lease whose delivery is settled. It reports whether the lease
// was still in force.
func (k *Keeper) Release(l *Lease) bool {
	k.mu.Lock()
	if l.prev != nil || l.next != nil || k.head == l {
		if l.prev != nil {
			l.prev.next = l.next
		} else {
			k.head = l.next
		}
		if l.next != nil {
			l.next.prev = l.prev
		}
		l.prev, l.next = nil, nil
	}
	k.mu.Unlock()
	return l.end()
}

// Holders returns who has a lease now.
func (k *Keeper) Holders() []Holder {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []Holder
	for l := k.head; l != nil; l = l.next {
		all = append(all, l.Holder)
	}
	return all
}

// Run watches until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(min(max(k.terms.Wait/20, 5*time.Millisecond), time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.look(time.Now())
		}
	}
}

func (k *Keeper) look(now time.Time) {
	var due, expired []*Lease
	k.mu.Lock()
	for l := k.head; l != nil; l = l.next {
		switch exp, beat := l.look(now); {
		case exp:
			expired = append(expired, l)
		case beat:
			due = append(due, l)
		}
	}
	k.mu.Unlock()
	for _, l := range expired {
		l.Lose(l.Lapse())
	}
	if len(due) > 0 {
		k.beat(due)
	}
}
