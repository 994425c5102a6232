package outbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tallyman-go/tallyman/internal/failpoint"
)

// answer is what became of the submission of one row of a batch.
type answer struct {
	row int
	err error
}

// publish submits the rows of a batch without waiting for each other, and
// marks them as the outcomes come in, many in one statement. A row that answers
// late does not hold the others up.
func (r *Relay) publish(ctx context.Context, b batch) {
	// Once the lease is over somebody else may submit the rows. That would do
	// no harm to them, but it would to their order.
	bounded, cancel := context.WithDeadline(ctx, b.trusted)
	defer cancel()
	answers := make(chan answer, len(b.rows))
	go r.submit(bounded, b, answers)

	var (
		open  []answer
		timer <-chan time.Time
		tally tally
	)
	for got := 0; got < len(b.rows); {
		select {
		case a := <-answers:
			got++
			open = append(open, a)
			if timer == nil {
				timer = time.After(flushAfter)
			}
			if got < len(b.rows) {
				continue
			}
		case <-timer:
		}
		tally.add(r.settle(ctx, b, open))
		open, timer = open[:0], nil
	}
	r.conclude(tally, len(b.rows))
}

// submit hands the rows to the submitter. Each gets exactly one answer.
func (r *Relay) submit(ctx context.Context, b batch, answers chan<- answer) {
	for i := range b.rows {
		if ctx.Err() != nil {
			answers <- answer{i, fmt.Errorf("not submitted: %w", context.Cause(ctx))}
			continue
		}
		if err := b.rows[i].broken; err != nil {
			answers <- answer{i, err}
			continue
		}
		err := r.cfg.Submitter.SubmitAsync(ctx, b.rows[i].Command, func(err error) { answers <- answer{i, err} })
		if err != nil {
			answers <- answer{i, err}
		}
	}
}

// tally counts the fates of a batch.
type tally struct {
	sent, waiting int
	last          error // why a row waits
	keyed         bool
}

func (t *tally) add(u tally) {
	t.sent, t.waiting, t.keyed = t.sent+u.sent, t.waiting+u.waiting, t.keyed || u.keyed
	if u.last != nil {
		t.last = u.last
	}
}

// settle writes what became of some rows of a batch.
func (r *Relay) settle(ctx context.Context, b batch, answers []answer) tally {
	var (
		t         tally
		published []ref
		returned  []outcome
	)
	for _, a := range answers {
		c := &b.rows[a.row]
		t.keyed = t.keyed || c.keyed
		switch f := judge(a.err); f {
		case sent:
			t.sent++
			failpoint.Hit("after-publish", c.ID)
			published = append(published, ref{c.seq, c.deliveries})
		default:
			if f == wait {
				t.waiting++
				t.last = a.err
			}
			returned = append(returned, r.outcome(ctx, c, f, a.err))
		}
	}
	if len(published) > 0 {
		n := r.insist(ctx, b, len(published), func(ctx context.Context) (int64, error) { return r.rows.published(ctx, published) })
		r.stats.published.Add(n)
	}
	if len(returned) > 0 {
		r.insist(ctx, b, len(returned), func(ctx context.Context) (int64, error) { return r.rows.returned(ctx, returned) })
	}
	return t
}

// outcome says what becomes of a row that the pool has not accepted.
func (r *Relay) outcome(ctx context.Context, c *row, f fate, err error) outcome {
	o := outcome{Seq: c.seq, Deliveries: c.deliveries, State: "failed", Attempts: c.attempts + 1, Error: errorText(err)}
	switch {
	case f == wait:
		o.State, o.Attempts = "pending", c.attempts
		pause := max(r.away.current(), pauseMin)
		if ctx.Err() != nil {
			pause = 0 // handed back: another relay may have it at once
		}
		o.Delay = micros(pause)
		r.stats.returned.Add(1)
	case f == retry && o.Attempts < int64(r.cfg.Attempts):
		d := backoffOf(o.Attempts, r.cfg.BackoffMin, r.cfg.BackoffMax)
		o.Delay = micros(d/2 + rand.N(d/2+1))
		r.stats.retried.Add(1)
		r.log.Warn("a row failed and is tried again", "id", c.ID, "attempt", o.Attempts, "error", err)
	default:
		r.stats.failed.Add(1)
		r.log.Error("a row failed and is not tried again", "id", c.ID, "attempt", o.Attempts, "error", err,
			"remedy", "correct the cause, then: producer retry or producer discard (outbox.Retry, outbox.Discard)")
	}
	return o
}

func micros(d time.Duration) *int64 {
	n := d.Microseconds()
	return &n
}

// insist writes outcomes, again and again while the database is away: what is
// not written is submitted once more after the lease, which is harmless but not
// free. It returns how many rows were still this relay's.
func (r *Relay) insist(ctx context.Context, b batch, want int, write func(context.Context) (int64, error)) int64 {
	// Not ctx itself: what was published before a stop is to be marked after
	// it, but the stop does not wait for ever.
	end := time.Now().Add(statementTime)
	if b.trusted.After(end) {
		end = b.trusted
	}
	stopped := ctx
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	unwatch := context.AfterFunc(stopped, func() {
		t := time.AfterFunc(statementTime, cancel)
		context.AfterFunc(ctx, func() { t.Stop() })
	})
	defer unwatch()
	pause := newPause()
	for try := 1; ; try++ {
		one, cancel := context.WithTimeout(ctx, statementTime)
		n, err := write(one)
		cancel()
		if err == nil {
			if lost := int64(want) - n; lost > 0 && try == 1 {
				r.stats.refused.Add(lost)
				r.log.Warn("rows were taken over while their lease had run out", "rows", lost)
			}
			return n
		}
		r.log.Warn("cannot mark rows, trying again", "rows", want, "error", err)
		if !rest(ctx, pause.NextBackOff()) {
			r.log.Error("rows stay unmarked; they are submitted again after their lease, and absorbed", "rows", want, "error", err)
			return 0
		}
	}
}

// conclude draws the conclusions from a whole batch.
func (r *Relay) conclude(t tally, n int) {
	switch {
	case t.sent > 0 || t.waiting == 0:
		r.away.over()
	case t.waiting == n:
		if pause, first := r.away.grow(); first {
			r.log.Warn("the pool takes nothing, trying again", "error", t.last, "pause", pause)
		}
	}
	if t.keyed {
		r.Wake() // the next rows of these keys have become the first
	}
}

// troubles is how long to leave the pool alone.
type troubles struct {
	mu    sync.Mutex
	pause *backoff.ExponentialBackOff
	wait  time.Duration
}

func (t *troubles) current() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wait
}

func (t *troubles) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wait = 0
	t.pause.Reset()
}

func (t *troubles) grow() (pause time.Duration, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = t.wait == 0
	t.wait = t.pause.NextBackOff()
	return t.wait, first
}
