package tallyman

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/lease"
	"github.com/tallyman-go/tallyman/stream"
)

// run is one delivery on its way through a worker:
//
//	take -> begin -> (claim write) -> slot -> handler -> settle -> finish
//
// Every way through ends in exactly one call of finish.
type run struct {
	w     *Worker
	d     *stream.Delivery
	shard *shard // where the delivery lies and, but for a stray, its record
	env   command.Envelope
	lease *lease.Lease

	// Set while the delivery is judged, before any handler runs.
	route     *Route
	attempt   int
	claim     *Claim
	sure      bool            // the record was read from the leader, since an old answer would do harm
	unclaimed bool            // the claim is to be written before the handler starts
	suspect   bool            // may be what kills its workers: to run alone
	since     time.Time       // when it was put in front of the slots, if suspect
	doubt     *kvstate.Record // a point that may or may not be stored; under claim.mu like base
	ahead     *point          // progress that was held back, to go into the record that ends the attempt
	gate      chan bool       // set while a claim is being written; finish tells it

	// What this run last read or wrote of the record. Owned by whoever moves
	// the run forward; while the handler runs, under claim.mu.
	base     *kvstate.Record
	revision uint64 // to expect in the next write

	begun    atomic.Bool   // the handler has been called
	failed   atomic.Bool   // the handler returned an error, or was given up
	token    atomic.Uint64 // under which this worker has claimed it; 0 if it has not
	seen     atomic.Uint64 // copy of revision that heartbeats may read
	settled  atomic.Bool   // the outcome is being written, by the handler's return or without it
	returned time.Time     // when the handler did; owned by whoever set settled

	// One piece of memory for what every run has.
	held  lease.Lease
	shown Claim

	mu     sync.Mutex
	ended  error // why the handler's context ended before it returned
	cancel context.CancelCauseFunc
}

// exec runs the handler. It reports whether the slot is still this
// goroutine's: not if the handler was given up meanwhile.
func (r *run) exec() (keep bool) {
	began := time.Now()
	if !r.lease.HeldAt(began) {
		r.drop()
		return true
	}
	if r.unclaimed {
		if !r.takeOver() {
			return true
		}
		if began = time.Now(); !r.lease.HeldAt(began) {
			r.drop()
			return true
		}
	}
	if !r.open() && r.expired() { // while it waited for the slot, or for its claim
		r.park(kvstate.ReasonExpired, r.tooLate())
		return true
	}
	ctx, cancel := context.WithCancelCause(r.w.values)
	defer cancel(nil)
	r.mu.Lock()
	tooLate := r.ended != nil
	r.cancel = cancel
	r.mu.Unlock()
	if tooLate {
		r.drop() // the lease ended while the claim was being written
		return true
	}
	if r.w.stopped.Load() {
		cancel(ErrDraining)
	}
	if r.route.Timeout > 0 {
		timer := time.AfterFunc(r.route.Timeout, func() { r.end(ErrTimeout) })
		defer timer.Stop()
	}

	failAt("before-handler", r.env.ID)
	r.begun.Store(true)
	result, err := r.call(ctx, r.perform)
	returned := time.Now()
	failAt("after-handler", r.env.ID)
	if !r.settled.CompareAndSwap(false, true) {
		r.w.slots.returned()
		return false
	}
	r.returned = returned
	r.failed.Store(err != nil)
	took := returned.Sub(began)
	r.w.slots.ran(took)
	var cause error
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	r.settle(result, err, cause, took)
	return true
}

// errGoexit is the failure of a handler that ended its goroutine.
var errGoexit = errors.New("the handler ended its goroutine (runtime.Goexit, as t.FailNow does); it has to return an error instead")

// call is f, the handler's code, with its panic caught.
func (r *run) call(ctx context.Context, f func(context.Context) (Result, error)) (result Result, err error) {
	returned := false
	defer func() {
		p := recover()
		switch {
		case p == nil && !returned:
			// Nothing after this runs on this goroutine: another one settles, and serves the slot.
			if !r.settled.CompareAndSwap(false, true) {
				r.w.slots.returned()
				return
			}
			r.returned = time.Now()
			go func() {
				r.settle(Result{}, errGoexit, nil, 0)
				r.w.serve(false)
			}()
		case p != nil:
			err = &PanicError{Value: p, Stack: debug.Stack()}
			r.w.log.Error("handler panicked", "id", r.env.ID, "kind", r.env.Kind, "attempt", r.attempt, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	result, err = f(ctx)
	returned = true
	return result, err
}

// perform is one attempt. Where an earlier one announced an effect, it is first
// found out what became of that.
func (r *run) perform(ctx context.Context) (Result, error) {
	if r.open() {
		result, again, err := r.confirm(ctx)
		if err != nil || !again {
			return result, err
		}
	}
	return r.route.Handler.Handle(ctx, r.claim)
}

// confirm asks the route's Confirm for the outcome of an effect. Again reports
// that it did not happen, and that this is recorded.
func (r *run) confirm(ctx context.Context) (result Result, again bool, err error) {
	finding, result, err := r.route.Confirm(ctx, r.claim, r.base.Intent)
	switch {
	case err != nil:
		return Result{}, false, fmt.Errorf("confirm: %w", err)
	case finding == Done:
		return result, false, nil
	case finding == NotDone:
		if err := r.claim.Withdraw(ctx); err != nil {
			return Result{}, false, err
		}
		r.claim.mu.Lock()
		r.claim.followUps = nil // those of Confirm
		r.claim.mu.Unlock()
		if r.expired() {
			// Confirm may ask at any time, but the handler may not start any more.
			return Result{}, false, &verdictError{err: r.tooLate(), verdict: Verdict{Action: ActPark, Reason: kvstate.ReasonExpired}}
		}
		return Result{}, true, nil
	}
	return Result{}, false, Uncertain(errors.New("an effect was announced, and Confirm could not tell whether it happened"))
}

// end ends the handler's context for cause. If the handler then does not
// return within the grace, it is given up.
func (r *run) end(cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended != nil {
		return
	}
	r.ended = cause
	if r.cancel != nil {
		r.cancel(cause)
		time.AfterFunc(r.w.cfg.Grace, func() { r.giveUp(cause) })
	}
}

// giveUp settles the attempt of a handler that ignores the end of its context,
// and gives its slot to another. Should the handler return some day, nobody listens.
func (r *run) giveUp(cause error) {
	if !r.settled.CompareAndSwap(false, true) {
		return
	}
	err := fmt.Errorf("the handler went on for %v after its context had ended (%w); it still occupies a goroutine", r.w.cfg.Grace, cause)
	r.w.log.Error("handler is stuck", "id", r.env.ID, "kind", r.env.Kind, "attempt", r.attempt, "error", err)
	r.observe(Event{Type: EventStuck, Err: err})
	r.w.slots.giveUp()
	go r.w.serve(false)
	r.returned = time.Now()
	r.failed.Store(true)
	r.settle(Result{}, err, cause, 0)
}

// stop ends the handler's context because the worker drains.
func (r *run) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		r.cancel(ErrDraining)
	}
}

// LeaseLost is the keeper's word that the lease ended other than by settling.
func (r *run) LeaseLost(cause error) {
	r.mu.Lock()
	atWork := r.cancel != nil
	r.mu.Unlock()
	if !r.settled.Load() {
		if atWork && errors.Is(cause, ErrLeaseLost) {
			// Not the claim's token: a Progress that was refused comes here with
			// the claim's mutex in its hands.
			r.w.log.Warn("lease lost", "id", r.env.ID, "kind", r.env.Kind, "attempt", r.attempt, "revision", r.seen.Load())
			r.observe(Event{Type: EventLeaseLost, Err: cause})
		}
		r.end(cause)
	}
}

// finish lets go of the delivery, however it ended.
func (r *run) finish() {
	r.w.keeper.Release(r.lease)
	r.w.slots.finish()
	r.w.wakeUp()
	if r.gate != nil {
		r.gate <- false
	}
}

// drop leaves the delivery to its lease: it comes again, here or elsewhere.
func (r *run) drop() {
	r.dropFor(nil)
}

// dropFor is drop because of a failure; nil if the lease had run out.
func (r *run) dropFor(err error) {
	r.observe(Event{Type: EventDropped, Err: err})
	r.finish()
}

// refused ends a run whose write found somebody else's: silently towards the
// server, since an ack or nak would hit the command of its new owner.
func (r *run) refused(err error) {
	r.w.log.Warn("write refused, someone else owns the command", "id", r.env.ID, "attempt", r.attempt, "error", err)
	r.observe(Event{Type: EventRefused, Err: err})
	r.finish()
}

// cancelled ends a run whose command an operator has cancelled. The record says
// so already, and whoever cancelled it, or gets it next, takes it out of the stream.
func (r *run) cancelled() {
	r.w.log.Info("cancelled by an operator", "id", r.env.ID, "kind", r.env.Kind, "attempt", r.attempt, "began", r.begun.Load())
	r.observe(Event{Type: EventCancelled})
	r.finish()
}

func (r *run) observe(e Event) {
	e.ID, e.Kind, e.Queue, e.Attempt = r.env.ID, r.env.Kind, r.env.Queue, r.attempt
	r.note(e)
	r.w.cfg.Observe(e)
}

// saw notes the record that this run goes on from, and the revision to expect.
func (r *run) saw(rec *kvstate.Record, revision uint64) {
	r.base, r.revision = rec, revision
	r.seen.Store(revision)
}

// next is the record that follows the base: in another state, by this worker.
func (r *run) next(to kvstate.State, note string) (*kvstate.Record, error) {
	return r.nextIn(nil, to, note, time.Now())
}

// nextIn is next, as of at, in room if that is not nil and there is no base.
func (r *run) nextIn(room *kvstate.Room, to kvstate.State, note string, at time.Time) (*kvstate.Record, error) {
	base := r.base
	if base == nil {
		base = &kvstate.Record{ID: r.env.ID, Kind: r.env.Kind, Queue: r.env.Queue, Digest: r.env.Digest}
	}
	next, err := base.AdvanceIn(room, to, r.w.owner, clip(note, maxNote), at)
	if err != nil {
		return nil, err
	}
	next.Revision = r.revision
	next.Attempt = r.attempt
	next.AddSeq(r.d.Seq)
	if r.ahead != nil {
		next.Offset, next.Checkpoint = r.ahead.offset, r.ahead.state
	}
	return next, nil
}

// Limits in bytes on texts in records.
const (
	maxNote  = 256
	maxError = 2048
)

// clip cuts s to at most n bytes without splitting a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
