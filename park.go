package tallyman

import (
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

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
	err = r.fileAside(key, rec)
	if errors.Is(err, kvstate.ErrTooLarge) {
		r.keepPayload(key, rec, func(rec *kvstate.Record) {
			if err := r.fileAside(key, rec); err != nil {
				r.leave("park a delivery", err)
			}
		})
		return
	}
	if err != nil {
		r.leave("park a delivery", err)
	}
}

// fileAside writes the record of a delivery that is parked under its sequence,
// then acks. If it returns an error nothing was written.
func (r *run) fileAside(key command.Token, rec *kvstate.Record) error {
	return r.shard.records.Write(key, rec, func(revision uint64, err error) {
		switch {
		case errors.Is(err, kvstate.ErrStale):
			revision = 1 // it lies there from an earlier delivery; nobody else writes this key
		case err != nil:
			r.leave("park a delivery", err)
			return
		}
		r.w.log.Warn("parked", "id", rec.ID, "kind", rec.Kind, "sequence", r.d.Seq, "reason", rec.Reason, "error", rec.Error)
		r.ack(command.Proof{Revision: revision}, Event{Type: EventParked, Key: key, Reason: rec.Reason, Err: errors.New(rec.Error)})
	})
}

// tooLarge deals with a record that the server would not store. A result that
// is too large parks the command, since another attempt would produce it
// again; a command that does not fit into its parked record has its payload
// stored beside it.
func (r *run) tooLarge(next *kvstate.Record, err error) {
	switch {
	case next.State == kvstate.Completed:
		r.park(kvstate.ReasonRejected, fmt.Errorf("the work was done, but its result of %d bytes and %s do not fit into a receipt (limit %d bytes); store large results elsewhere and return a reference", len(next.Result), plural.Count(len(next.FollowUps), "follow-up"), r.shard.records.Limit()))
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
	r.keepPayload(r.env.Token, next, func(rec *kvstate.Record) {
		r.commit(rec, func(revision uint64) {
			r.ack(command.Proof{Revision: revision}, Event{Type: EventParked, Reason: rec.Reason, Err: errors.New(rec.Error)})
		})
	})
}

// keepPayload stores the payload of a record's command in an entry beside that
// of key, and calls then with the record that points there instead.
func (r *run) keepPayload(key command.Token, rec *kvstate.Record, then func(*kvstate.Record)) {
	beside := kvstate.PayloadKey(key)
	err := r.shard.records.Put(beside, rec.Command.Payload, false, func(_ uint64, err error) {
		if err != nil {
			r.leave("keep the payload of a parked command", err)
			return
		}
		without := *rec.Command
		without.Payload = nil
		next := *rec
		next.Command = &without
		next.Error = clip(fmt.Sprintf("%s (payload under %s)", clip(next.Error, maxError-512), beside), maxError)
		then(&next)
	})
	if err != nil {
		r.leave("keep the payload of a parked command", err)
	}
}
