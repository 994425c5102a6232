package outbox

import (
	"context"
)

const (
	sweepBatch = 1000
	// sweepRounds bounds one sweep, so that it stays in the background.
	sweepRounds = 50
)

// sweep notes the receipts of published rows, and removes rows whose receipt
// was seen and whose retention has passed. Rows of parked commands stay.
func (r *Relay) sweep(ctx context.Context) {
	pause := newPause()
	after := int64(0)
	for {
		var err error
		after, err = r.sweepOnce(ctx, after)
		next := r.cfg.Sweep
		switch {
		case err == nil:
			pause.Reset()
		case ctx.Err() == nil:
			next = max(next, pause.NextBackOff())
			r.log.Warn("cannot sweep, trying again", "error", err, "pause", next)
		}
		if !rest(ctx, next) {
			return
		}
	}
}

// sweepOnce looks at the receipts of rows after the given one, and returns
// after which row to go on. Commands without a receipt are passed over and met
// again once the walk has come round.
func (r *Relay) sweepOnce(ctx context.Context, after int64) (int64, error) {
	for range sweepRounds {
		n, last, err := r.noteReceipts(ctx, after)
		if err != nil {
			return after, err
		}
		if after = last; n < sweepBatch {
			after = 0
			break
		}
	}
	for range sweepRounds {
		one, cancel := context.WithTimeout(ctx, statementTime)
		n, err := r.rows.remove(one, r.cfg.Retention, sweepBatch)
		cancel()
		if err != nil {
			return after, err
		}
		r.stats.removed.Add(n)
		if n < sweepBatch {
			break
		}
	}
	return after, nil
}

// noteReceipts asks for the receipts of one batch of rows.
func (r *Relay) noteReceipts(ctx context.Context, after int64) (n int, last int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	seqs, ids, err := r.rows.unsettled(ctx, after, sweepBatch)
	if err != nil || len(seqs) == 0 {
		return 0, after, err
	}
	states, err := r.cfg.States.States(ctx, ids)
	if err != nil {
		return 0, after, err
	}
	var settled []settlement
	for i, s := range states {
		if s.Final() {
			settled = append(settled, settlement{seqs[i], s})
		}
	}
	if len(settled) > 0 {
		marked, err := r.rows.settled(ctx, settled)
		if err != nil {
			return 0, after, err
		}
		r.stats.settled.Add(marked)
	}
	return len(seqs), seqs[len(seqs)-1], nil
}
