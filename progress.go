package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/lease"
)

// save makes a handler's progress or intent durable. It runs under claim.mu.
func (r *run) save(ctx context.Context, _ *Claim, p *point) (token uint64, err error) {
	what := fmt.Sprintf("tallyman: %s of %q", p.what(), r.env.ID)
	next, err := r.at(*p)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if r.settled.Load() || !r.lease.Held() {
			return 0, fmt.Errorf("%s: %w", what, ErrLeaseLost)
		}
		failAt("before-progress", r.env.ID)
		// The end of the handler's context stops further tries, but does not cut
		// this one off: what is stored must be known.
		sure, done := context.WithTimeout(r.w.life, settleTime)
		revision, err := r.shard.records.WriteWait(sure, r.env.Token, next)
		if err == nil {
			done()
			failAt("after-progress", r.env.ID)
			r.wrote(next, revision)
			return r.base.Token, nil
		}
		if errors.Is(err, kvstate.ErrTooLarge) {
			done()
			return 0, fmt.Errorf("%s: %w", what, translate(err))
		}
		// Whatever it was, the stored record decides.
		e, readErr := r.shard.records.Read(sure, r.env.Token)
		done()
		switch {
		case readErr == nil && r.doubt != nil && sameWrite(e.Record, r.doubt):
			// An earlier write that was never confirmed has been stored after all.
			r.wrote(r.doubt, e.Revision)
			r.doubt = nil
			if p.offset < r.base.Offset {
				p.offset, p.state = r.base.Offset, r.base.Checkpoint
			}
			if next, err = r.at(*p); err != nil {
				return 0, fmt.Errorf("%s: %w", what, err)
			}
			continue
		case readErr == nil && sameWrite(e.Record, next):
			r.wrote(next, e.Revision)
			return r.base.Token, nil
		case readErr == nil && e.Revision != next.Revision && e.Raw == nil:
			r.saw(r.base, e.Revision) // deleted by hand; write it over the marker
			next.Revision = e.Revision
		case readErr == nil && e.Revision != next.Revision:
			r.observe(Event{Type: EventRefused, Err: err})
			cause := r.supersededBy(e.Record)
			r.lease.Lose(cause)
			return 0, fmt.Errorf("%s: %w: %w", what, cause, err)
		}
		if sleepErr := pipeline.Sleep(ctx, pause); sleepErr != nil {
			r.doubt = next
			return 0, fmt.Errorf("%s: %w: %w", what, sleepErr, translate(err))
		}
	}
}

// at is the record at a point. The first one of an attempt that has no record
// yet is its claim as well.
func (r *run) at(p point) (*kvstate.Record, error) {
	to := kvstate.Claimed
	if p.intent != nil {
		to = kvstate.Prepared
	}
	var next *kvstate.Record
	if to == kvstate.Claimed && r.base != nil && r.base.State == to {
		same := *r.base // only progress: no step in the trail
		next = &same
		next.Revision = r.revision
	} else {
		var err error
		if next, err = r.next(to, p.note); err != nil {
			return nil, err
		}
	}
	next.Offset, next.Checkpoint, next.Intent = p.offset, p.state, p.intent
	return next, nil
}

// open reports whether an effect was announced whose outcome is not known.
func (r *run) open() bool { return r.base != nil && r.base.Open() }

// supersededBy is the cause for which this run must stop, given the record
// that stands where it wanted to write.
func (r *run) supersededBy(rec *kvstate.Record) error {
	if rec != nil && rec.State == kvstate.Cancelled {
		return ErrCancelled
	}
	return ErrLeaseLost
}

// beat sends heartbeats. It first reads the records: where one shows another
// owner, the lease is lost and nothing is sent, since the server would extend
// the new owner's lease.
func (w *Worker) beat(due []*lease.Lease) {
	for _, s := range w.pool.shards {
		of := due
		if len(w.pool.shards) > 1 {
			of = nil
			for _, l := range due {
				if l.Holder.(*run).shard == s {
					of = append(of, l)
				}
			}
		}
		for len(of) > 0 {
			n := min(len(of), kvstate.MaxBatch)
			w.beatSome(s, of[:n])
			of = of[n:]
		}
	}
}

func (w *Worker) beatSome(s *shard, due []*lease.Lease) {
	keys := make([]command.Token, len(due))
	for i, l := range due {
		keys[i] = l.Holder.(*run).env.Token
		if keys[i] == "" {
			keys[i] = kvstate.KeySettings // being parked as malformed: there is no record to look at
		}
	}
	err := s.records.ReadMany(keys, func(entries []kvstate.Entry, err error) {
		if err != nil {
			w.log.Warn("heartbeat: cannot read records", "error", err)
			return // it is due again soon, and trust ends by itself
		}
		for i, l := range due {
			r := l.Holder.(*run)
			if cause := r.takenBy(entries[i].Record); cause != nil {
				l.Lose(cause)
				continue
			}
			if !l.Held() {
				continue
			}
			start := time.Now()
			if err := r.d.Extend(func(err error) {
				if err == nil {
					l.Confirm(start)
				}
			}); err != nil {
				w.log.Warn("heartbeat not sent", "id", r.env.ID, "error", err)
			}
		}
	})
	if err != nil {
		w.log.Warn("heartbeat: cannot read records", "error", err)
	}
}

// takenBy tells from a record whether someone else has the command now, and
// returns the cause for which the handler's context is to end.
func (r *run) takenBy(rec *kvstate.Record) error {
	switch {
	case rec == nil || rec.ID != r.env.ID:
		return nil
	case rec.Owner == r.w.owner:
		return nil // ours, or written by an earlier run here whose delivery came back
	case !r.begun.Load():
		return nil // its own first write will tell
	case rec.State == kvstate.Cancelled:
		return ErrCancelled
	case rec.Revision <= r.seen.Load():
		return nil // an old answer of a replica that lags
	}
	return ErrLeaseLost
}
