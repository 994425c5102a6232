package memory

import (
	"sync"
	"time"
)

// lane carries parcels one way between a handle and the server, in order, as a
// TCP connection does.
type lane struct {
	mu      sync.Mutex
	parcels []parcel
	last    time.Time // when the newest parcel is due; later ones must not overtake it
	held    bool
	busy    bool // some goroutine is opening parcels
}

type parcel struct {
	due  time.Time
	open func()
}

// send lets a parcel arrive after delay, or with the one before it if that is later.
func (l *lane) send(delay time.Duration, open func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := time.Now().Add(delay)
	if due.Before(l.last) {
		due = l.last
	}
	l.last = due
	l.parcels = append(l.parcels, parcel{due, open})
	time.AfterFunc(time.Until(due), l.move)
}

// move opens what is due. Nobody else opens parcels meanwhile.
func (l *lane) move() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy {
		return // whoever is at it looks again before it stops
	}
	l.busy = true
	for !l.held && len(l.parcels) > 0 && !l.parcels[0].due.After(time.Now()) {
		p := l.parcels[0]
		l.parcels = l.parcels[1:]
		l.mu.Unlock()
		p.open()
		l.mu.Lock()
	}
	l.busy = false
}

// hold keeps parcels from being opened until release.
func (l *lane) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
}

func (l *lane) release() {
	l.mu.Lock()
	l.held = false
	l.mu.Unlock()
	go l.move()
}

// clear loses everything that is under way.
func (l *lane) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parcels = nil
}
