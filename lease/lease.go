package lease

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrLost says that the lease is over: whoever held it may change nothing more.
var ErrLost = errors.New("lease lost")

// Lapse is how a lease ended that nobody renewed in time. It is an ErrLost.
type Lapse struct {
	Missed  int           // heartbeats that were due and sent since the last confirmed one
	Silence time.Duration // from the start of that one to the end of the lease
	Ended   time.Time     // when trust ended, however late that was noticed
	Noticed time.Time
}

func (l *Lapse) Error() string {
	text := fmt.Sprintf("%v after %d missed heartbeats, %v after the last sign of life that was confirmed", ErrLost, l.Missed, l.Silence)
	if late := l.Noticed.Sub(l.Ended); late >= time.Second {
		text += fmt.Sprintf("; noticed %v later", late.Round(time.Millisecond))
	}
	return text
}

// Unwrap returns ErrLost.
func (l *Lapse) Unwrap() error { return ErrLost }

// Terms are the times of every lease of a pool.
type Terms struct {
	Wait time.Duration // ack wait of the consumer; must be positive
}

// Trust returns until when a lease that was confirmed by something sent at
// start may be relied on.
func (t Terms) Trust(start time.Time) time.Time { return start.Add(t.Wait - t.Wait/10) }

// beatAfter is when the next heartbeat is due.
func (t Terms) beatAfter(start time.Time) time.Time { return start.Add(t.Wait / 3) }

// Holder is who has a lease.
type Holder interface {
	// LeaseLost is called once if the lease ends other than by Release: with a
	// Lapse if it ran out, or the cause given to Lose.
	LeaseLost(cause error)
}

// Lease is ownership of one delivery. [Keeper.HoldIn] begins one.
type Lease struct {
	// Holder is for the owner to find again in a heartbeat.
	Holder Holder

	terms Terms

	mu       sync.Mutex
	start    time.Time // of what was confirmed last
	nextBeat time.Time
	missed   int  // heartbeats handed out since then
	over     bool // lost or released

	// Owned by the keeper, under its mutex.
	prev, next *Lease
}

// Held reports whether the holder may still act for the delivery.
func (l *Lease) Held() bool { return l.HeldAt(time.Now()) }

// HeldAt is Held for who has just looked at the clock: not before anything that
// may block, such as a write to a connection.
func (l *Lease) HeldAt(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.over && now.Before(l.terms.Trust(l.start))
}

// Confirm extends the lease after a heartbeat that was sent at start has been
// confirmed. It does nothing once the lease has ended.
func (l *Lease) Confirm(start time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || !start.After(l.start) || !time.Now().Before(l.terms.Trust(l.start)) {
		return
	}
	l.start = start
	l.nextBeat = l.terms.beatAfter(start)
	l.missed = 0
}

// Lapse describes how the lease runs out, or ran out, unless a heartbeat is
// confirmed or was.
func (l *Lease) Lapse() *Lapse {
	l.mu.Lock()
	defer l.mu.Unlock()
	ended := l.terms.Trust(l.start)
	return &Lapse{Missed: l.missed, Silence: ended.Sub(l.start), Ended: ended, Noticed: time.Now()}
}

// Lose ends the lease for cause, because someone else owns the delivery or
// wants its holder to stop, and tells the holder. Only the first end counts.
func (l *Lease) Lose(cause error) {
	if l.end() {
		l.Holder.LeaseLost(cause)
	}
}

func (l *Lease) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false
	}
	l.over = true
	return true
}

// look says what the lease needs at now.
func (l *Lease) look(now time.Time) (expired, beat bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return false, false
	}
	if !now.Before(l.terms.Trust(l.start)) {
		return true, false
	}
	if now.Before(l.nextBeat) {
		return false, false
	}
	l.nextBeat = now.Add(l.terms.Wait / 6) // again, unless confirmed before
	l.missed++                             // until it is confirmed
	return false, true
}
