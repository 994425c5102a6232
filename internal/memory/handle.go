package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// ErrCut is what a handle answers while it is cut off: nothing was sent.
var ErrCut = errors.New("memory: not connected")

// Handle is one process and its connection, as the server knows it.
type Handle struct {
	s      *Server
	name   string
	faults Faults
	out    lane // to the server
	in     lane // from it

	mu      sync.Mutex
	dead    bool
	frozen  bool
	cut     bool
	limbo   []func()              // what was sent while frozen
	open    map[*request]struct{} // requests under way
	changed chan struct{}         // closed and replaced at every cut
	leases  map[uint64]time.Time  // by sequence: when the lease runs out that this handle knows to have
}

// request is a request under way.
type request struct {
	fail  func(error)
	timer *time.Timer
}

// Connect returns a new handle. Its name stands in the log.
func (s *Server) Connect(name string, faults Faults) *Handle {
	return &Handle{s: s, name: name, faults: faults, open: map[*request]struct{}{}, changed: make(chan struct{}), leases: map[uint64]time.Time{}}
}

// Name returns the handle's name.
func (h *Handle) Name() string { return h.name }

// Kill is SIGKILL: what the process sends from now on never arrives, and nothing
// reaches it any more. What it had sent before arrives. Since its goroutines
// cannot be killed, they see their requests time out, and are to be stopped by
// whoever calls this.
func (h *Handle) Kill() {
	h.mu.Lock()
	h.dead = true
	h.limbo = nil
	h.mu.Unlock()
	h.in.clear()
	h.s.forget(h)
}

// Dead reports whether the handle was killed.
func (h *Handle) Dead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

// gone reports whether there is no connection.
func (h *Handle) gone() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead || h.cut
}

// Freeze is SIGSTOP, or a network that stalls: what was sent before arrives,
// what is sent from now on is held back until Thaw, and so is all that comes.
// The process's goroutines go on: they do what a process can do between two
// looks at the network. The server does not notice.
func (h *Handle) Freeze() {
	h.mu.Lock()
	h.frozen = true
	h.mu.Unlock()
	h.in.hold()
}

// Thaw lets everything that was held back arrive.
func (h *Handle) Thaw() {
	h.mu.Lock()
	h.frozen = false
	for _, open := range h.limbo {
		h.out.send(0, open)
	}
	h.limbo = nil
	h.mu.Unlock()
	h.in.release()
}

// Cut breaks the connection: requests under way end with ErrDisconnected, and
// until Heal nothing can be sent. What is on its way to the server arrives,
// unless lose is set; what is on its way back does not.
func (h *Handle) Cut(lose bool) {
	h.mu.Lock()
	h.cut = true
	if lose {
		h.out.clear()
	}
	h.limbo = nil
	h.in.clear()
	ended := h.open
	h.open = map[*request]struct{}{}
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	h.s.forget(h)
	// The client library itself notices: nothing has to arrive for that.
	time.AfterFunc(0, func() {
		for r := range ended {
			r.timer.Stop()
			r.fail(pipeline.ErrDisconnected)
		}
	})
}

// Heal connects again.
func (h *Handle) Heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = false
}

// lease notes that the lease of a sequence lasts from start, as far as this
// handle can know. One that has run out is not prolonged.
func (h *Handle) lease(seq uint64, start time.Time, anew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.leases[seq]
	if !anew && (!ok || time.Now().After(until)) {
		return
	}
	if end := start.Add(h.s.cfg.Lease); end.After(until) {
		h.leases[seq] = end
	}
}

// entitled notes, as broken, that a handle acts for sequences none of whose
// leases it has any more (I4). A handle that had none of them is no worker.
func (h *Handle) entitled(what string, seqs ...uint64) {
	h.mu.Lock()
	now, had, has := time.Now(), false, false
	for _, seq := range seqs {
		until, ok := h.leases[seq]
		had = had || ok
		has = has || ok && !now.After(until)
	}
	idle := h.dead
	h.mu.Unlock()
	if had && !has && !idle {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.broken = append(h.s.broken, fmt.Sprintf("I4: at %s %s sends %s for sequences %v after the end of its lease", now.Format("15:04:05.000"), h.name, what, seqs))
	}
}

// send lets serve happen at the server. It returns ErrCut if it never will.
func (h *Handle) send(delay time.Duration, serve func()) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.dead:
	case h.cut:
		return ErrCut
	case h.frozen:
		h.limbo = append(h.limbo, serve)
	default:
		h.out.send(delay, serve)
	}
	return nil
}

// receive lets open happen at the handle, unless it is cut off by then.
func (h *Handle) receive(delay time.Duration, open func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.dead && !h.cut {
		h.in.send(delay, open)
	}
}

// ask sends a request. Serve runs at the server and returns what is to run at
// the handle when the answer arrives; fail runs there if none does. Exactly one
// of the two does, and neither if ask returns an error.
func (h *Handle) ask(op Op, serve func(Fate) (answer func()), fail func(error)) error {
	fate := h.faults.fate(op)
	r := &request{fail: fail}
	h.mu.Lock()
	if h.cut && !h.dead {
		h.mu.Unlock()
		return ErrCut
	}
	h.open[r] = struct{}{}
	r.timer = time.AfterFunc(pipeline.DefaultTimeout, func() {
		if h.end(r) {
			r.fail(pipeline.ErrTimeout)
		}
	})
	h.mu.Unlock()
	err := h.send(fate.Delay, func() {
		if fate.Lost {
			return
		}
		answer := serve(fate)
		if fate.Unanswered {
			return
		}
		h.receive(fate.Back, func() {
			if h.end(r) {
				answer()
			}
		})
	})
	if err != nil && !h.end(r) {
		return nil // cut at this moment: fail has been told
	}
	return err
}

// end takes a request off the books. It reports whether it was there.
func (h *Handle) end(r *request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, there := h.open[r]
	delete(h.open, r)
	r.timer.Stop()
	return there
}

// cutOff returns what is closed when the connection breaks, and whether it is broken.
func (h *Handle) cutOff() (changed <-chan struct{}, cut bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed, h.cut
}

// Flush returns once everything that was sent before has arrived.
func (h *Handle) Flush(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, err := pipeline.Await(ctx, func(done func(struct{}, error)) error {
		return h.ask(OpFlush, func(Fate) func() { return func() { done(struct{}{}, nil) } },
			func(err error) { done(struct{}{}, err) })
	})
	if err != nil {
		return fmt.Errorf("memory: flush: %w", err)
	}
	return nil
}

// Denied returns nothing: the double denies nothing.
func (h *Handle) Denied(time.Time, func(string) bool) string { return "" }

// UntilDenied returns ctx: the double denies nothing.
func (h *Handle) UntilDenied(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

// Close does nothing; it returns nil.
func (h *Handle) Close() error { return nil }
