package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// unknownKindAttempts is how often a command without a handler is tried. Only
// a deployment that is under way mends that, so few are enough.
const unknownKindAttempts = 3

// wakeUp tells fetchers that they may ask for more.
func (w *Worker) wakeUp() {
	if w.rations != nil {
		w.rations.freed()
		return
	}
	for _, c := range w.wake {
		wake(c)
	}
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take receives deliveries from a fetcher and goes on with them once the pool's
// layout is known to hold.
func (w *Worker) take(at *shard, batch []*stream.Delivery) {
	w.slots.take(len(batch))
	runs := make([]*run, 0, len(batch))
	for _, d := range batch {
		r := &run{w: w, d: d, shard: at}
		var err error
		r.env, err = dedupe.Recognise(d.Queue, d.Kind, d.Token, d.Header, d.Payload)
		r.lease = &r.held
		w.keeper.HoldIn(r.lease, r, d.LeaseFrom)
		if err != nil && !r.lease.Held() {
			r.drop()
			continue
		}
		if err != nil {
			r.parkAside(kvstate.MalformedKey(d.Seq), kvstate.ReasonMalformed, fmt.Errorf("subject %s: %w", d.Subject(), err))
			continue
		}
		runs = append(runs, r)
	}
	switch {
	case len(runs) == 0:
	case w.accord.fresh():
		w.judge(at, runs)
	default:
		go w.agreed(runs, func(runs []*run) { w.judge(at, runs) })
	}
}

// judge reads the records of deliveries in one request, and goes on when the
// answer is there. What belongs to other shards is forwarded. It does not block.
func (w *Worker) judge(at *shard, all []*run) {
	runs := make([]*run, 0, len(all))
	keys := make([]command.Token, 0, len(all))
	var strays []*run
	for _, r := range all {
		if w.pool.of(r.env.Token) != at {
			strays = append(strays, r)
			continue
		}
		runs = append(runs, r)
		keys = append(keys, r.env.Token)
	}
	if len(strays) > 0 {
		go w.forward(strays)
	}
	if len(runs) == 0 {
		return
	}
	done := func(entries []kvstate.Entry, err error) {
		for i, r := range runs {
			if err != nil {
				go r.judgeAnew(err)
			} else {
				r.begin(entries[i])
			}
		}
	}
	if err := at.records.ReadMany(keys, done); err != nil {
		done(nil, err)
	}
}

// judgeAnew reads the record from the stream's leader, for as long as the
// lease holds, and begins again.
func (r *run) judgeAnew(why error) {
	for pause := 10 * time.Millisecond; r.lease.Held(); pause = min(2*pause, time.Second) {
		ctx, cancel := context.WithTimeout(r.w.life, settleTime)
		e, err := r.shard.records.Read(ctx, r.env.Token)
		cancel()
		if err == nil {
			r.begin(e)
			return
		}
		why = err
		if pipeline.Sleep(r.w.life, pause) != nil {
			break
		}
	}
	r.w.log.Warn("cannot read a record, the command comes again", "id", r.env.ID, "error", why)
	r.dropFor(why)
}

// begin judges the delivery in the light of its record. It does not block.
func (r *run) begin(e kvstate.Entry) {
	now := time.Now()
	if !r.lease.HeldAt(now) {
		r.drop()
		return
	}
	r.saw(e.Record, e.Revision)
	found := dedupe.Judge(r.env, r.d.Seq, e, now)
	settled := found == dedupe.Settled && !e.Record.State.Final() // parked is an end that a human can undo
	if !r.sure && (settled || found == dedupe.Repeated || found == dedupe.Rival || found == dedupe.Conflict) {
		// What follows is not written over that record, so nothing would notice
		// that this answer is old: ask the leader.
		r.sure = true
		go r.judgeAnew(nil)
		return
	}
	switch found {
	case dedupe.Fresh:
		r.attempt = 1
		if r.d.Attempts > 1 {
			// It was delivered before, and whoever got it may have run it. No
			// more than one attempt can have left no record: this one will.
			r.attempt = 2
		}
		r.start()
	case dedupe.Resume:
		r.attempt = r.base.Attempt + 1
		r.start()
	case dedupe.Early:
		r.nakIfHeld(time.Until(r.base.NextAt))
	case dedupe.Settled:
		r.wrapUp(r.base, e.Revision, Event{Type: EventAbsorbed})
	case dedupe.Repeated:
		r.absorb()
	case dedupe.Rival:
		go r.meetRival()
	case dedupe.Conflict:
		r.parkAside(kvstate.ConflictKey(r.d.Seq), kvstate.ReasonConflict,
			fmt.Errorf("the id stands for a command of kind %q with digest %s, this one is of kind %q with digest %s", r.base.Kind, r.base.Digest, r.env.Kind, r.env.Digest))
	case dedupe.Unsure:
		r.attempt = r.base.Attempt + 1
		r.start()
	case dedupe.Corrupt:
		go r.mend(e)
	}
}

// start lets the attempt begin, or says why it must not.
func (r *run) start() {
	r.route = r.w.cfg.Mux.lookup(r.env.Kind)
	switch limit := r.maxAttempts(); {
	case r.open() && (r.attempt > limit || r.route != nil && r.route.Confirm == nil):
		r.attempt = r.base.Attempt
		r.park(kvstate.ReasonUncertain, r.unsure())
	case !r.open() && r.expired():
		r.park(kvstate.ReasonExpired, r.tooLate())
	case r.attempt > limit && r.route == nil:
		r.attempt = r.base.Attempt
		r.park(kvstate.ReasonUnknownKind, r.noHandler())
	case r.attempt > limit:
		r.attempt = limit
		r.park(kvstate.ReasonExhausted, r.spent(limit))
	case r.w.draining.Load():
		r.handBack()
	case r.route == nil:
		r.fail(Verdict{Action: ActRetry}, r.noHandler(), 0)
	case r.base == nil && r.attempt == 1 && !r.route.Eager:
		r.enter() // the receipt's compare-and-swap is the fence
	default:
		r.unclaimed = true
		// Every attempt before the last ended without a word, so this command may
		// be what kills its workers: or it only happened to run beside that one.
		r.suspect = limit > 1 && r.attempt == limit && (r.base == nil || r.base.State == kvstate.Claimed)
		r.enter()
	}
}

// expired reports whether it is too late for the handler to start.
func (r *run) expired() bool {
	return !r.env.NotAfter.IsZero() && time.Now().After(r.env.NotAfter)
}

func (r *run) tooLate() error {
	return fmt.Errorf("it was to start by %s", r.env.NotAfter.Format(time.RFC3339))
}

func (r *run) noHandler() error {
	return fmt.Errorf("no handler for kind %q at worker %s, which has %v", r.env.Kind, r.w.owner, r.w.cfg.Mux.Kinds())
}

// unsure explains why a command is parked that announced an effect.
func (r *run) unsure() error {
	text := fmt.Sprintf("attempt %d at %s announced an effect, and its outcome is not known", r.base.Attempt, r.base.Owner)
	if r.base.Error != "" {
		text += ": " + r.base.Error
	}
	return errors.New(text)
}

// spent explains why a command is parked whose attempts were used up by
// workers that did not live to say so.
func (r *run) spent(limit int) error {
	if r.base != nil && r.base.Error != "" {
		return errors.New(r.base.Error)
	}
	return fmt.Errorf("%d of %d attempts began and none ended: each time the worker died or lost its lease", limit, limit)
}

func (r *run) maxAttempts() int {
	n := r.w.pool.settings.MaxAttempts
	switch {
	case r.route == nil:
		return min(n, unknownKindAttempts)
	case r.route.MaxAttempts > 0:
		return r.route.MaxAttempts
	}
	return n
}

// takeOver writes the claim and waits for it: the handler starts after it, and
// the revision of that write is its fencing token. It runs on the slot of the
// handler, so that nothing counts as an attempt that has not had a slot. It
// reports whether the command is this worker's; if not, the run has ended.
func (r *run) takeOver() bool {
	to := kvstate.Claimed
	if r.open() {
		to = kvstate.Prepared // until Confirm has spoken
	}
	next, err := r.next(to, "")
	if err != nil {
		r.refused(err)
		return false
	}
	next.Token = 0 // to be read as the revision it gets
	gate := make(chan bool, 1)
	r.gate = gate
	r.commit(next, func(revision uint64) {
		r.wrote(next, revision)
		gate <- true
	})
	if !<-gate {
		return false
	}
	r.gate, r.unclaimed = nil, false
	r.claim.mu.Lock()
	r.claim.token = r.base.Token
	r.claim.mu.Unlock()
	if r.attempt > 1 {
		r.observe(Event{Type: EventTakeover})
	}
	return true
}

// wrote makes a claim that was just stored the base of what follows.
func (r *run) wrote(rec *kvstate.Record, revision uint64) {
	rec.Revision = revision
	if rec.Token == 0 {
		rec.Token = revision
		rec.Trail[len(rec.Trail)-1].Token = revision
	}
	r.saw(rec, revision)
	r.token.Store(rec.Token)
}

// enter puts the run in front of the slots.
func (r *run) enter() {
	r.claim = &r.shown
	r.claim.cmd, r.claim.attempt, r.claim.saver = &r.env.Command, r.attempt, r
	r.claim.pace = pace{every: r.route.SaveEvery, count: r.route.SaveCount}
	r.claim.limit = r.shard.records.Limit() - stream.Reserve // the records that follow hold errors and a trail as well
	r.claim.largest = r.shard.commands.Limit()
	if r.base != nil {
		r.claim.token = r.base.Token
		r.claim.durable = point{offset: r.base.Offset, state: r.base.Checkpoint, intent: r.base.Intent}
	}
	start, ok := r.w.slots.push(r)
	switch {
	case !ok:
		r.handBack()
	case start:
		go r.w.serve(true)
	case r.suspect:
		time.AfterFunc(r.w.pool.settings.Lease, r.w.nudge)
	}
}

// nudge fills a free slot, should something be ready: a suspect that has waited
// long enough to be alone.
func (w *Worker) nudge() {
	if w.slots.nudge(w.pool.settings.Lease) {
		w.serve(false)
	}
}

// serve runs what is ready until there is nothing left or its slot is taken away.
func (w *Worker) serve(came bool) {
	for ; ; came = false {
		r, more := w.slots.next(w.pool.settings.Lease, came)
		if more {
			go w.serve(true)
		}
		if r != nil && r.suspect {
			time.AfterFunc(w.pool.settings.Lease, w.nudge)
		}
		if r == nil || !r.exec() {
			return
		}
	}
}

// leave drops a delivery because of a failure that the log should show.
func (r *run) leave(what string, err error) {
	r.w.log.Warn("cannot "+what+", the command comes again", "id", r.env.ID, "sequence", r.d.Seq, "error", translate(err))
	r.dropFor(fmt.Errorf("cannot %s: %w", what, translate(err)))
}
