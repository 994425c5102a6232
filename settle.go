package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tallyman-go/tallyman/command"
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
	r.claim.mu.Unlock()

	if err != nil && errors.Is(cause, ErrTimeout) && !errors.Is(err, ErrTimeout) {
		err = fmt.Errorf("%w after %v: %w", ErrTimeout, r.route.Timeout, err)
	}
	verdict := judge(err, cause)
	if !r.lease.Held() && verdict.Action != ActCancel {
		verdict = Verdict{Action: ActAbandon}
	}
	switch verdict.Action {
	case ActComplete:
		r.complete(result, followUps, took)
	case ActRetry:
		r.fail(verdict, err, took)
	case ActPark:
		r.park(verdict.Reason, err)
	case ActHandBack:
		r.handBack()
	case ActCancel:
		r.refused(ErrCancelled) // the record says so already; whoever gets the delivery next acks it
	case ActAbandon:
		r.refused(ErrLeaseLost)
	}
}

func (r *run) complete(result Result, followUps []command.Command, took time.Duration) {
	next, err := r.next(kvstate.Completed, "")
	if err != nil {
		r.refused(err)
		return
	}
	next.Result, next.ContentType, next.FollowUps = result.Body, result.ContentType, followUps
	next.Error, next.NextAt, next.Checkpoint = "", time.Time{}, nil
	r.commit(next, func(revision uint64) {
		r.wrapUp(next, revision, Event{Type: EventCompleted, Handler: took, Settle: time.Since(r.returned)})
	})
}

// wrapUp does what remains once the outcome is recorded: it bears the
// follow-ups, then acks. A crash in between leaves the delivery unacked, and
// whoever gets it next comes here again.
func (r *run) wrapUp(rec *kvstate.Record, revision uint64, e Event) {
	if rec.State != kvstate.Completed || len(rec.FollowUps) == 0 {
		r.ack(command.Proof{Revision: revision}, e)
		return
	}
	go func() {
		failpoint("before-follow-ups", r.env.ID)
		if err := r.bear(rec.FollowUps); err != nil {
			r.leave("submit the follow-ups", err)
			return
		}
		r.ack(command.Proof{Revision: revision}, e)
	}()
}

// bear submits the follow-ups of a receipt. Those that exist are absorbed.
func (r *run) bear(followUps []command.Command) error {
	if n := len(followUps); failpointsEnabled && n > 1 {
		for i, c := range followUps {
			if err := r.bearSome(followUps[i:i+1], i); err != nil {
				return fmt.Errorf("%q: %w", c.ID, err)
			}
			failpoint("between-follow-ups", r.env.ID)
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
	err := r.w.pool.shared().SubmitMany(r.w.life, commands, func(i int, _ Submission, err error) {
		switch {
		case err == nil:
		case isOneOf(err, ErrConflict, ErrTooLarge, ErrInvalidID, ErrInvalidName):
			// It can never be born; a human has to know.
			if err = r.stillborn(followUps[i], from+i+1, err); err != nil {
				failed = err
			}
		default:
			failed = err
		}
	})
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
	_, err = r.w.pool.records.WriteWait(ctx, kvstate.FollowUpConflictKey(r.env.Token, n), rec)
	if errors.Is(err, kvstate.ErrStale) {
		return nil // parked by an earlier try
	}
	r.observe(Event{Type: EventParked, Reason: kvstate.ReasonConflict, Err: why})
	return err
}

// ack takes the command out of the stream, on proof, and ends the run.
func (r *run) ack(proof command.Proof, e Event) {
	failpoint("before-ack", r.env.ID)
	if err := r.d.Ack(proof); err != nil {
		r.w.log.Warn("ack not sent, the command comes again and is absorbed", "id", r.env.ID, "error", err)
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
// if that was the last.
func (r *run) fail(verdict Verdict, err error, took time.Duration) {
	if r.attempt >= r.maxAttempts() {
		reason := kvstate.ReasonExhausted
		if r.route == nil {
			reason = kvstate.ReasonUnknownKind
		}
		r.park(reason, err)
		return
	}
	delay := verdict.Delay
	if !verdict.Fixed {
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
		r.nak(time.Until(next.NextAt))
	})
}

// park stops the command for a human, with the whole of it in the record.
func (r *run) park(reason kvstate.Reason, err error) {
	next, illegal := r.next(kvstate.Parked, string(reason))
	if illegal != nil {
		r.refused(illegal)
		return
	}
	next.Reason, next.Error, next.NextAt = reason, clip(err.Error(), maxError), time.Time{}
	next.Command = &r.env.Command
	r.commit(next, func(revision uint64) {
		r.w.log.Warn("parked", "id", r.env.ID, "kind", r.env.Kind, "attempt", r.attempt, "reason", reason, "error", err)
		r.ack(command.Proof{Revision: revision}, Event{Type: EventParked, Reason: reason, Err: err})
	})
}

// parkAside parks a delivery under its sequence, because the entry of its id
// is not its own, or it has none.
func (r *run) parkAside(key command.Token, reason kvstate.Reason, why error) {
	rec := &kvstate.Record{ID: r.env.ID, Kind: r.d.Kind, Queue: r.d.Queue, Digest: r.env.Digest}
	if rec.ID == "" {
		rec.ID = string(key)
	}
	rec, err := rec.Advance(kvstate.Parked, r.w.owner, string(reason), time.Now())
	if err != nil {
		r.leave("park a delivery", err)
		return
	}
	rec.Reason, rec.Error, rec.Seqs = reason, clip(why.Error(), maxError), []uint64{r.d.Seq}
	whole := r.env.Command
	if whole.Payload == nil {
		whole = command.Command{ID: rec.ID, Kind: r.d.Kind, Queue: r.d.Queue, Payload: r.d.Payload}
	}
	rec.Command = &whole
	err = r.w.pool.records.Write(key, rec, func(revision uint64, err error) {
		switch {
		case errors.Is(err, kvstate.ErrStale):
			revision = 1 // it lies there from an earlier delivery; nobody else writes this key
		case err != nil:
			r.leave("park a delivery", err)
			return
		}
		r.w.log.Warn("parked", "id", rec.ID, "kind", rec.Kind, "sequence", r.d.Seq, "reason", reason, "error", why)
		r.ack(command.Proof{Revision: revision}, Event{Type: EventParked, Reason: reason, Err: why})
	})
	if err != nil {
		r.leave("park a delivery", err)
	}
}

// parkCorrupt parks a command whose own record does not decode. The damaged
// bytes are kept under a key of their own before the record is written over.
func (r *run) parkCorrupt(e kvstate.Entry) {
	saved := make(chan error, 1)
	err := r.w.pool.records.Put(kvstate.CorruptKey(r.env.Token, e.Revision), e.Raw, false, func(_ uint64, err error) { saved <- err })
	if err == nil {
		err = <-saved
	}
	if err != nil {
		r.leave("keep the bytes of a damaged record", err)
		return
	}
	r.saw(nil, e.Revision)
	r.attempt = 0
	r.park(kvstate.ReasonCorrupt, fmt.Errorf("its record at revision %d is damaged: %w; the bytes are kept under %s", e.Revision, e.Err, kvstate.CorruptKey(r.env.Token, e.Revision)))
}

// handBack returns a command to the pool at shutdown. The attempt it had begun
// is taken back, on record, so that the next delivery does not count it.
func (r *run) handBack() {
	mine := r.base == nil || r.base.State == kvstate.Claimed && r.base.Owner == r.w.owner
	if !mine || !r.lease.Held() {
		r.observe(Event{Type: EventHandedBack})
		r.nakIfHeld()
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
		r.nak(0)
	})
}

func (r *run) nakIfHeld() {
	if r.lease.Held() {
		r.nak(0)
		return
	}
	r.finish()
}

// commit writes the record over the revision that this run has seen, and calls
// then once that is durable. If it cannot be, the run ends without then.
func (r *run) commit(next *kvstate.Record, then func(revision uint64)) {
	err := r.w.pool.records.Write(r.env.Token, next, func(revision uint64, err error) {
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
		e, readErr := r.w.pool.records.Read(ctx, r.env.Token)
		cancel()
		if readErr == nil {
			switch {
			case sameWrite(e.Record, next):
				then(e.Revision)
				return
			case e.Revision == next.Revision:
				// Not there yet; the lease permitting, write it again.
			case e.Raw == nil:
				// Deleted by hand or expired, and nobody has claimed it since.
				next.Revision = e.Revision
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
		if sleep(r.w.life, pause.NextBackOff()) != nil {
			r.refused(err)
			return
		}
		if readErr != nil {
			continue // a write now could not be told from the one before
		}
		ctx, cancel = context.WithTimeout(r.w.life, settleTime)
		var revision uint64
		revision, err = r.w.pool.records.WriteWait(ctx, r.env.Token, next)
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
// deliveries, one worker may have two runs of a command, and only one may write.
func sameWrite(stored, wanted *kvstate.Record) bool {
	return stored != nil && stored.Owner == wanted.Owner && stored.State == wanted.State &&
		stored.Attempt == wanted.Attempt && stored.Offset == wanted.Offset &&
		lastStep(stored).Equal(lastStep(wanted))
}

// lastStep is when the record came into its state.
func lastStep(r *kvstate.Record) time.Time {
	if len(r.Trail) == 0 {
		return time.Time{}
	}
	return r.Trail[len(r.Trail)-1].At
}

// tooLarge deals with a record that the server would not store. A result that
// is too large parks the command, since another attempt would produce it
// again; a command that does not fit into its parked record has its payload
// stored beside it.
func (r *run) tooLarge(next *kvstate.Record, err error) {
	switch {
	case next.State == kvstate.Completed:
		r.park(kvstate.ReasonRejected, fmt.Errorf("the work was done, but its result of %d bytes and %d follow-ups do not fit into a receipt (limit %d bytes); store large results elsewhere and return a reference", len(next.Result), len(next.FollowUps), r.w.pool.records.Limit()))
	case next.State == kvstate.Parked && next.Checkpoint != nil && next.Command != nil && len(next.Command.Payload) == 0:
		r.leave("park the command", err)
	case next.State == kvstate.Parked && next.Command != nil && len(next.Command.Payload) > 0:
		r.parkBeside(next)
	default:
		r.leave("write the record", err)
	}
}

// parkBeside parks a command whose payload needs an entry of its own.
func (r *run) parkBeside(next *kvstate.Record) {
	key := kvstate.PayloadKey(r.env.Token)
	putErr := r.w.pool.records.Put(key, next.Command.Payload, false, func(_ uint64, err error) {
		if err != nil {
			r.leave("keep the payload of a parked command", err)
			return
		}
		without := *next.Command
		without.Payload = nil
		rec := *next
		rec.Command = &without
		rec.Error = clip(fmt.Sprintf("%s (payload under %s)", rec.Error, key), maxError)
		r.commit(&rec, func(revision uint64) {
			r.ack(command.Proof{Revision: revision}, Event{Type: EventParked, Reason: rec.Reason, Err: errors.New(rec.Error)})
		})
	})
	if putErr != nil {
		r.leave("keep the payload of a parked command", putErr)
	}
}
