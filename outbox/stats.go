package outbox

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"
)

const (
	sampleEvery = 5 * time.Second
	// maxCount is where counting rows ends: beyond it, more is more of the same.
	maxCount = 100_000
)

// Stats is what a relay has done, and what it last saw in the database.
type Stats struct {
	Published int64 // rows that the pool accepted or had, and that were marked
	Returned  int64 // times that a row was put back because of an outage, a full pool or a stop
	Retried   int64 // times that a row failed and is tried again
	Failed    int64 // rows that failed and are not tried again
	TakenOver int64 // rows of relays whose lease had run out
	Refused   int64 // marks refused because the row had been taken over
	Settled   int64 // rows whose receipt was seen
	Removed   int64 // rows removed after the retention

	// Of the whole table, sampled every 5 s; counts end at 100,000.
	Pending   int64         // rows that are not published, without those that failed for good
	Abandoned int64         // rows that failed for good
	Oldest    time.Duration // how long the oldest pending row could have been sent
	SampledAt time.Time     // zero: not yet
}

type counters struct {
	published, returned, retried, failed, takenOver, refused, settled, removed atomic.Int64

	sample atomic.Pointer[Stats]
}

// Stats returns what the relay has done. It does not ask the database.
func (r *Relay) Stats() Stats {
	var s Stats
	if last := r.stats.sample.Load(); last != nil {
		s = *last
	}
	c := &r.stats
	s.Published, s.Returned, s.Retried, s.Failed = c.published.Load(), c.returned.Load(), c.retried.Load(), c.failed.Load()
	s.TakenOver, s.Refused, s.Settled, s.Removed = c.takenOver.Load(), c.refused.Load(), c.settled.Load(), c.removed.Load()
	return s
}

// sample looks at the table now and then.
func (r *Relay) sample(ctx context.Context) {
	for {
		if s, err := r.look(ctx); err == nil {
			r.stats.sample.Store(&s)
		} else if ctx.Err() == nil {
			r.log.Debug("cannot sample the outbox", "error", err)
		}
		if !rest(ctx, sampleEvery) {
			return
		}
	}
}

func (r *Relay) look(ctx context.Context) (Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	var (
		s      Stats
		oldest int64
		db, d  = r.cfg.DB, r.cfg.Dialect
	)
	if err := db.QueryRowContext(ctx, countOpen.in(d), maxCount).Scan(&s.Pending); err != nil {
		return s, err
	}
	if err := db.QueryRowContext(ctx, countFailed.in(d), maxCount).Scan(&s.Abandoned); err != nil {
		return s, err
	}
	err := db.QueryRowContext(ctx, oldestOpen.in(d)).Scan(&oldest)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return s, err
	}
	s.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	s.SampledAt = time.Now()
	return s, nil
}
