package tallyman

import (
	"context"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// mend deals with a command whose own record does not decode. The damaged bytes
// are kept under a key of their own before anything is written over them. If
// they were progress of a claim and the revision before them is whole, the
// command goes on from there; otherwise it is parked.
func (r *run) mend(e kvstate.Entry) {
	aside := kvstate.CorruptKey(r.env.Token, e.Revision)
	saved := make(chan error, 1)
	err := r.shard.records.Put(aside, e.Raw, false, func(_ uint64, err error) { saved <- err })
	if err == nil {
		err = <-saved
	}
	if err != nil {
		r.leave("keep the bytes of a damaged record", err)
		return
	}
	before, err := r.before(e)
	if err != nil {
		r.leave("read the record before a damaged one", err)
		return
	}
	if before == nil {
		r.saw(nil, e.Revision)
		r.attempt = 0
		r.park(kvstate.ReasonCorrupt, fmt.Errorf("its record at revision %d is damaged: %w; the bytes are kept under %s", e.Revision, e.Err, aside))
		return
	}
	r.w.log.Warn("record damaged, going on from the one before", "id", r.env.ID, "damaged", e.Revision, "before", before.Revision,
		"offset", before.Offset, "kept", aside, "error", e.Err)
	r.observe(Event{Type: EventFellBack, Key: aside, Err: e.Err})
	r.begin(kvstate.Entry{Key: e.Key, Revision: e.Revision, Record: before})
}

// before returns the record from which a command may go on whose newest record
// is damaged; nil if there is none.
//
// Only progress may be lost like this. What the damaged bytes were is known
// from the entry's header alone: a claim, in which no effect is open. From any
// other state, and without a header, going back could undo a decision.
func (r *run) before(e kvstate.Entry) (*kvstate.Record, error) {
	if e.Label != kvstate.Claimed {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.w.life, settleTime)
	defer cancel()
	old, err := r.shard.records.Oldest(ctx, e.Key)
	if err != nil {
		return nil, err
	}
	if old.Record == nil || old.Revision >= e.Revision {
		return nil, nil
	}
	switch dedupe.Judge(r.env, r.d.Seq, old, time.Now()) {
	case dedupe.Resume, dedupe.Unsure:
		return old.Record, nil
	}
	return nil, nil
}
