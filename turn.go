package tallyman

import "sync"

// turn is a mutex for what is held across a round trip to the server. Whoever
// waits for one counts as blocked in testing/synctest, where time would stand
// still behind a [sync.Mutex]. The zero value is free; it must not be copied.
type turn struct {
	mu   sync.Mutex // held for an instant only
	busy bool
	free *sync.Cond // set once somebody has waited
}

// Lock waits until nobody else has the turn.
func (t *turn) Lock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.busy {
		if t.free == nil {
			t.free = sync.NewCond(&t.mu)
		}
		t.free.Wait()
	}
	t.busy = true
}

// Unlock gives the turn to one of those who wait.
func (t *turn) Unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = false
	if t.free != nil {
		t.free.Signal()
	}
}
