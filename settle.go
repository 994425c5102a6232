package tallyman

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// settleTime bounds one look at the server while a run is being settled.
const settleTime = 10 * time.Second

// settle turns what the handler returned into the command's next state.
func (r *run) settle(result Result, err, cause error, took time.Duration) {
	// A handler that was given up may still call Progress: it waits here, and
	// finds the run settled.
	r.claim.mu.Lock()
	followUps := r.claim.followUps
	r.ahead = r.claim.ahead
	r.claim.mu.Unlock()

	if err != nil && errors.Is(cause, ErrTimeout) && !errors.Is(err, ErrTimeout) {
		err = fmt.Errorf("%w after %v: %w", ErrTimeout, r.route.Timeout, err)
	}
	verdict := judge(err, cause)
	now := time.Now() // not before the claim was free
	if !r.lease.HeldAt(now) && verdict.Action != ActCancel {
		verdict = Verdict{Action: ActAbandon}
	}
	switch verdict.Action {
	case ActComplete:
		r.complete(result, followUps, took, now)
	case ActRetry:
		r.fail(verdict, err, took)
	case ActPark:
		r.park(verdict.Reason, err)
	case ActHandBack:
		r.handBack()
	case ActCancel:
		r.cancelled()
	case ActAbandon:
		r.refused(ErrLeaseLost)
	}
}

func (r *run) complete(result Result, followUps []command.Command, took time.Duration, now time.Time) {
	room := kvstate.NewRoom()
	next, err := r.nextIn(room, kvstate.Completed, "", now)
	if err != nil {
		r.refused(err)
		return
	}
	next.Result, next.ContentType, next.FollowUps = result.Body, result.ContentType, followUps
	next.Error, next.NextAt, next.Checkpoint, next.Intent = "", time.Time{}, nil, nil
	// As commit does, with less garbage.
	done := func(revision uint64, err error) {
		if err != nil {
			go r.clarify(next, err, func(revision uint64) { r.completed(next, revision, took) })
			return
		}
		r.completed(next, revision, took)
		room.Release()
	}
	if err := r.shard.records.Write(r.env.Token, next, done); err != nil {
		done(0, err)
	}
}

func (r *run) completed(rec *kvstate.Record, revision uint64, took time.Duration) {
	r.wrapUp(rec, revision, Event{Type: EventCompleted, FollowUps: len(rec.FollowUps), Handler: took, Settle: time.Since(r.returned)})
}

// wrapUp does what remains once the outcome is recorded: it bears the
// follow-ups, then acks. A crash in between leaves the delivery unacked, and
// whoever gets it next comes here again.
func (r *run) wrapUp(rec *kvstate.Record, revision uint64, e Event) {
	if rec.State != kvstate.Completed || len(rec.FollowUps) == 0 {
		r.ack(command.Proof{Revision: revision}, e)
		return
	}
	go r.bearThenAck(rec.FollowUps, revision, e) // the pipeline's goroutine must not wait for it
}

func (r *run) bearThenAck(followUps []command.Command, revision uint64, e Event) {
	failAt("before-follow-ups", r.env.ID)
	if err := r.bear(followUps); err != nil {
		r.leave("submit the follow-ups", err)
		return
	}
	r.ack(command.Proof{Revision: revision}, e)
}

// bear submits the follow-ups of a receipt. Those that exist are absorbed.
func (r *run) bear(followUps []command.Command) error {
	if n := len(followUps); failpointsEnabled && n > 1 {
		for i, c := range followUps {
			if err := r.bearSome(followUps[i:i+1], i); err != nil {
				return fmt.Errorf("%q: %w", c.ID, err)
			}
			failAt("between-follow-ups", r.env.ID)
		}
		return nil
	}
	return r.bearSome(followUps, 0)
}

func (r *run) bearSome(followUps []command.Command, from int) error {
	commands := func(yield func(Command) bool) {
		for _, c := range followUps {
			if !yield(c) {
				return
			}
		}
	}
	var failed error
	// What can never be born is parked once all answers are in: they come on
	// the pipeline's goroutine, which must not wait for a write.
	refused := map[int]error{}
	err := r.w.pool.shared().SubmitMany(r.w.life, commands, func(i int, _ Submission, err error) {
		switch {
		case err == nil:
		case isOneOf(err, ErrConflict, ErrTooLarge, ErrInvalidID, ErrInvalidName):
			refused[i] = err
		default:
			failed = err
		}
	})
	for i, why := range refused {
		if err := r.stillborn(followUps[i], from+i+1, why); err != nil {
			failed = err
		}
	}
	return errors.Join(err, failed)
}

// stillborn parks a follow-up whose id already stands for another command.
func (r *run) stillborn(c command.Command, n int, why error) error {
	r.w.log.Error("a follow-up cannot be born", "id", c.ID, "parent", r.env.ID, "error", why)
	rec := &kvstate.Record{ID: c.ID, Kind: c.Kind, Queue: c.Queue, State: kvstate.None}
	rec, err := rec.Advance(kvstate.Parked, r.w.owner, "follow-up of "+clip(r.env.ID, 128), time.Now())
	if err != nil {
		return err
	}
	rec.Reason, rec.Error, rec.Command = kvstate.ReasonConflict, clip(why.Error(), maxError), &c
	ctx, cancel := context.WithTimeout(r.w.life, settleTime)
	defer cancel()
	key := kvstate.FollowUpConflictKey(r.env.Token, n)
	_, err = r.shard.records.WriteWait(ctx, key, rec)
	if errors.Is(err, kvstate.ErrStale) {
		return nil // parked by an earlier try
	}
	r.observe(Event{Type: EventParked, Key: key, Reason: kvstate.ReasonConflict, Err: why})
	return err
}

// ack takes the command out of the stream, on proof, and ends the run.
func (r *run) ack(proof command.Proof, e Event) {
	failAt("before-ack", r.env.ID)
	if err := r.d.Ack(proof); err != nil {
		r.w.log.Warn("ack not sent, the command comes again and is absorbed", "id", r.env.ID, "error", err)
	} else {
		r.w.sweeperOf(r.shard).Acked(r.d.Queue, r.d.Seq, e.Type == EventParked || r.base != nil && r.base.State == kvstate.Parked)
	}
	r.observe(e)
	r.finish()
}

// nak gives the delivery back, to come again after delay.
func (r *run) nak(delay time.Duration) {
	if err := r.d.Nak(delay); err != nil {
		r.w.log.Warn("delivery not given back, it comes again when its lease has run out", "id", r.env.ID, "error", err)
	}
	r.finish()
}

// fail records a failed attempt and spaces the next one, or parks the command
// if that was the last, or if it announced an effect that nothing can confirm.
func (r *run) fail(verdict Verdict, err error, took time.Duration) {
	last := r.attempt >= r.maxAttempts()
	switch {
	case r.open() && (last || r.route != nil && r.route.Confirm == nil):
		r.park(kvstate.ReasonUncertain, fmt.Errorf("an effect was announced, and its outcome is not known: %w", err))
		return
	case last && r.route == nil:
		r.park(kvstate.ReasonUnknownKind, err)
		return
	case last:
		r.park(kvstate.ReasonExhausted, err)
		return
	}
	delay := verdict.Delay
	if !verdict.Fixed || delay <= 0 { // at once would burn all attempts in no time
		delay = r.w.pool.settings.backoff(r.attempt)
	}
	next, illegal := r.next(kvstate.Waiting, err.Error())
	if illegal != nil {
		r.refused(illegal)
		return
	}
	next.Error, next.NextAt = clip(err.Error(), maxError), time.Now().Add(delay)
	r.commit(next, func(uint64) {
		r.observe(Event{Type: EventRetried, Err: err, Handler: took})
		r.nakIfHeld(time.Until(next.NextAt))
	})
}

// handBack returns a command to the pool at shutdown. The attempt it had begun
// is taken back, on record, so that the next delivery does not count it.
func (r *run) handBack() {
	if !r.unwritten() || !r.lease.Held() {
		r.observe(Event{Type: EventHandedBack})
		r.nakIfHeld(0)
		return
	}
	next, err := r.next(kvstate.Waiting, "handed back at shutdown")
	if err != nil {
		r.refused(err)
		return
	}
	next.Attempt, next.NextAt = r.attempt-1, time.Now()
	r.commit(next, func(uint64) {
		r.observe(Event{Type: EventHandedBack})
		r.nakIfHeld(0)
	})
}

// nakIfHeld gives the delivery back, unless the lease has ended while the record
// was being written: then a nak would hit the new owner's delivery.
func (r *run) nakIfHeld(delay time.Duration) {
	if r.lease.Held() {
		r.nak(delay)
		return
	}
	r.finish()
}

// commit writes the record over the revision that this run has seen, and calls
// then once that is durable. If it cannot be, the run ends without then.
func (r *run) commit(next *kvstate.Record, then func(revision uint64)) {
	err := r.shard.records.Write(r.env.Token, next, func(revision uint64, err error) {
		if err != nil {
			go r.clarify(next, err, then)
			return
		}
		then(revision)
	})
	if err != nil {
		go r.clarify(next, err, then)
	}
}

// clarify finds out what became of a write that did not simply succeed. The
// stored record decides; nothing is assumed.
func (r *run) clarify(next *kvstate.Record, err error, then func(revision uint64)) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 10*time.Millisecond, time.Second
	told := false
	for {
		if errors.Is(err, kvstate.ErrTooLarge) {
			r.tooLarge(next, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.w.life, settleTime)
		e, readErr := r.shard.records.Read(ctx, r.env.Token)
		cancel()
		if readErr == nil {
			switch {
			case sameWrite(e.Record, next):
				then(e.Revision)
				return
			case e.Revision == next.Revision:
				// Not there yet; the lease permitting, write it again.
			case r.doubt != nil && sameWrite(e.Record, r.doubt):
				// A point that was never confirmed has been stored after all. Its
				// intent does not count: the handler was told not to act on it.
				next.Revision, next.Token = e.Revision, e.Record.Token
				older := r.ahead == nil || r.ahead.offset < e.Record.Offset
				if older {
					next.Offset = e.Record.Offset
				}
				if older && next.State != kvstate.Completed {
					next.Checkpoint = e.Record.Checkpoint
				}
				r.doubt = nil
			case e.Raw == nil:
				// Deleted by hand or expired, and nobody has claimed it since.
				next.Revision = e.Revision
			case errors.Is(r.supersededBy(e.Record), ErrCancelled):
				r.cancelled()
				return
			default:
				r.refused(err)
				return
			}
		}
		if !r.lease.Held() {
			r.refused(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		}
		if !told && !errors.Is(err, kvstate.ErrStale) {
			told = true
			r.w.log.Warn("record not written yet", "id", r.env.ID, "state", next.State, "error", translate(err))
		}
		if pipeline.Sleep(r.w.life, pause.NextBackOff()) != nil {
			r.refused(err)
			return
		}
		if readErr != nil || !r.lease.Held() {
			// A write now could not be told from the one before, or the lease
			// has ended during the pause.
			continue
		}
		ctx, cancel = context.WithTimeout(r.w.life, settleTime)
		var revision uint64
		revision, err = r.shard.records.WriteWait(ctx, r.env.Token, next)
		cancel()
		if err == nil {
			then(revision)
			return
		}
	}
}

// sameWrite reports whether a stored record is the one that this run wanted to
// write. The owner's name is unique to a worker, and the moment of the last
// transition, in nanoseconds, to a run: where the server has lost count of
// deliveries, one worker may have two runs of a command, and only one may
// write. The revision tells the write from what it was to replace, which may
// be a claim or progress of the same run that looks just like it.
func sameWrite(stored, wanted *kvstate.Record) bool {
	return stored != nil && stored.Revision != wanted.Revision &&
		stored.Owner == wanted.Owner && stored.State == wanted.State &&
		stored.Attempt == wanted.Attempt && stored.Offset == wanted.Offset &&
		bytes.Equal(stored.Checkpoint, wanted.Checkpoint) && bytes.Equal(stored.Intent, wanted.Intent) &&
		slices.Equal(stored.Seqs, wanted.Seqs) && lastStep(stored).Equal(lastStep(wanted))
}

// lastStep is when the record came into its state.
func lastStep(r *kvstate.Record) time.Time {
	if len(r.Trail) == 0 {
		return time.Time{}
	}
	return r.Trail[len(r.Trail)-1].At
}
