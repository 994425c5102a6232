package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tallyman-go/tallyman/lease"
)

// Defaults of Config.
const (
	DefaultLease      = 30 * time.Second
	DefaultBatch      = 500
	DefaultBatchBytes = 8 << 20
	DefaultPoll       = time.Second
	DefaultPollSQLite = 100 * time.Millisecond
	DefaultAttempts   = 12
	DefaultBackoffMin = time.Second
	DefaultBackoffMax = 5 * time.Minute
	DefaultRetention  = 7 * 24 * time.Hour
	DefaultSweep      = 10 * time.Second
	DefaultDrain      = 5 * time.Second
)

const (
	depth         = 2  // batches under way: one is claimed while the other is being published
	firstBatch    = 64 // rows, until it is known how large they are
	maxBatch      = 10_000
	keyRounds     = 8                     // steps of a batch of keys in one claim
	flushAfter    = 50 * time.Millisecond // so long an outcome waits for others
	statementTime = 10 * time.Second

	pauseMin = 100 * time.Millisecond // while something is away
	pauseMax = 10 * time.Second
)

// Config of a Relay.
type Config struct {
	DB        *sql.DB   // required; on SQLite with a busy timeout if others write too
	Dialect   Dialect   // required
	Submitter Submitter // required: outbox.Via(producer)
	// States tells which commands have their receipt: the pool. Without it
	// rows are never removed.
	States States

	// Owner names this relay in the rows; unique to it. Default host/pid/random.
	Owner string
	// Lease is how long a claimed row is this relay's alone. Another takes it
	// over after that. Default 30 s, at least 1 s.
	Lease time.Duration
	// Batch is how many rows are claimed at once, at most 10,000. Default 500.
	// BatchBytes bounds a batch by what the payloads before it measured.
	// Default 8 MiB. Two batches are under way at a time.
	Batch      int
	BatchBytes int
	// Poll is how often the relay looks without being woken. Default 1 s, on
	// SQLite 100 ms.
	Poll time.Duration
	// Attempts bounds the tries of a row that keeps failing by itself; an
	// outage counts for nothing. Default 12. The pause after one doubles from
	// BackoffMin (default 1 s) to BackoffMax (default 5 min).
	Attempts               int
	BackoffMin, BackoffMax time.Duration
	// Retention is how long a row stays after its receipt was seen. Default 7
	// days. Sweep is how often the relay looks for receipts. Default 10 s.
	Retention time.Duration
	Sweep     time.Duration
	// Drain is how long submissions under way may take when the relay stops.
	// Default 5 s. Marking what became of them may then take 10 s.
	Drain  time.Duration
	Logger *slog.Logger // default slog.Default()
}

// Relay carries rows to the pool. Its methods are safe for concurrent use; Run
// must be called once.
type Relay struct {
	cfg   Config
	rows  *rows
	terms lease.Terms
	log   *slog.Logger

	wake chan struct{} // holds one: a look is due
	size atomic.Int64  // of the next batch
	key  string        // where the walk over the keys goes on; of the goroutine of Run

	away  troubles // of the pool
	stats counters
}

// NewRelay returns a relay. It does not touch the database.
func NewRelay(cfg Config) (*Relay, error) {
	switch {
	case cfg.DB == nil || cfg.Submitter == nil:
		return nil, errors.New("outbox: relay: Config.DB and Config.Submitter are required")
	case cfg.Dialect != SQLite && cfg.Dialect != Postgres:
		return nil, errors.New("outbox: relay: Config.Dialect is not set; use outbox.SQLite or outbox.Postgres")
	case cfg.Lease != 0 && cfg.Lease < time.Second:
		return nil, fmt.Errorf("outbox: relay: a lease of %v is too short; at least 1s", cfg.Lease)
	case cfg.Batch < 0 || cfg.Batch > maxBatch:
		return nil, fmt.Errorf("outbox: relay: a batch of %d rows; use 1 to %d", cfg.Batch, maxBatch)
	case cfg.BatchBytes < 0 || cfg.Poll < 0 || cfg.Attempts < 0 || cfg.BackoffMin < 0 || cfg.BackoffMax < 0 || cfg.Retention < 0 || cfg.Sweep < 0 || cfg.Drain < 0:
		return nil, errors.New("outbox: relay: limits and times must not be negative")
	}
	poll := DefaultPoll
	if cfg.Dialect == SQLite {
		poll = DefaultPollSQLite
	}
	setDefault(&cfg.Lease, DefaultLease)
	setDefault(&cfg.Batch, DefaultBatch)
	setDefault(&cfg.BatchBytes, DefaultBatchBytes)
	setDefault(&cfg.Poll, poll)
	setDefault(&cfg.Attempts, DefaultAttempts)
	setDefault(&cfg.BackoffMin, DefaultBackoffMin)
	setDefault(&cfg.BackoffMax, max(DefaultBackoffMax, cfg.BackoffMin))
	setDefault(&cfg.Retention, DefaultRetention)
	setDefault(&cfg.Sweep, DefaultSweep)
	setDefault(&cfg.Drain, DefaultDrain)
	if cfg.Owner == "" {
		host, _ := os.Hostname() // the rest is unique without it
		cfg.Owner = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	r := &Relay{
		cfg: cfg, rows: newRows(cfg.DB, cfg.Dialect, cfg.Owner, cfg.Lease), terms: lease.Terms{Wait: cfg.Lease},
		log: cfg.Logger.With("relay", cfg.Owner), wake: make(chan struct{}, 1),
	}
	r.away.pause = newPause()
	r.size.Store(int64(min(firstBatch, cfg.Batch)))
	return r, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// newPause is how long to wait while something is away: it grows, with jitter.
func newPause() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = pauseMin, pauseMax
	return b
}

// Wake makes the relay look at once. It never blocks.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is about to look in any case
	}
}

// Run relays until ctx ends, and returns when everything that it started has
// ended: submissions under way are waited for, and rows that were not submitted
// are handed back. It returns nil then, and an error only if it cannot work at
// all: ErrNoSchema. While database or pool are away it tries again, ever more slowly.
func (r *Relay) Run(ctx context.Context) error {
	if err := r.await(ctx); err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { r.sample(ctx) })
	if r.cfg.States != nil {
		group.Go(func() { r.sweep(ctx) })
	}
	// What was claimed is seen through when ctx ends, within the drain time.
	working, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	unwatch := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(r.cfg.Drain, func() { stop(errStopped) })
		context.AfterFunc(working, func() { t.Stop() })
	})
	defer unwatch()

	var publishing sync.WaitGroup
	defer publishing.Wait() // before stop
	slots := make(chan struct{}, depth)
	databaseAway := newPause()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		if !rest(ctx, r.away.current()) {
			return nil
		}
		b, err := r.claim(context.WithoutCancel(ctx))
		switch {
		case len(b.rows) > 0:
			if err != nil {
				r.log.Warn("not all rows that were due could be claimed", "error", err)
			}
			databaseAway.Reset()
			publishing.Go(func() {
				defer func() { <-slots }()
				r.publish(working, b)
			})
			continue
		case err != nil:
			pause := databaseAway.NextBackOff()
			r.log.Warn("cannot claim rows, trying again", "error", err, "pause", pause)
			if !rest(ctx, pause) {
				return nil
			}
		default:
			databaseAway.Reset()
			select {
			case <-r.wake:
			case <-time.After(r.cfg.Poll):
			case <-ctx.Done():
				return nil
			}
		}
		<-slots
	}
}

// await waits until the database answers, and returns an error if its tables
// are not as they should be.
func (r *Relay) await(ctx context.Context) error {
	pause := newPause()
	for {
		look, cancel := context.WithTimeout(ctx, statementTime)
		err := CheckSchema(look, r.cfg.DB, r.cfg.Dialect)
		cancel()
		if err == nil || errors.Is(err, ErrNoSchema) {
			return err
		}
		d := pause.NextBackOff()
		if ctx.Err() == nil {
			r.log.Warn("the database does not answer, trying again", "error", err, "pause", d)
		}
		if !rest(ctx, d) {
			return nil
		}
	}
}

// batch are rows that were claimed together.
type batch struct {
	rows []row
	// trusted is until when they are surely this relay's.
	trusted time.Time
}

// claim claims the next rows, those with an order key and those without. An
// error may come with rows.
func (r *Relay) claim(ctx context.Context) (batch, error) {
	ctx, cancel := context.WithTimeout(ctx, min(statementTime, r.cfg.Lease))
	defer cancel()
	b := batch{trusted: r.terms.Trust(time.Now())} // before the database sets the lease
	n := int(r.size.Load())
	keyed, err := r.claimKeyed(ctx, n)
	b.rows = keyed
	if err == nil {
		var free []row
		free, err = r.rows.due(ctx, n)
		b.rows = append(b.rows, free...)
	}
	bytes := 0
	for _, c := range b.rows {
		bytes += len(c.Payload)
		if c.takenFrom != "" {
			r.stats.takenOver.Add(1)
			r.log.Info("took a row over", "id", c.ID, "from", c.takenFrom)
		}
	}
	if len(b.rows) > 0 {
		each := bytes/len(b.rows) + 1
		r.size.Store(int64(min(max(r.cfg.BatchBytes/each, 1), r.cfg.Batch)))
	}
	return b, err
}

// claimKeyed claims rows that are the first of their key. It looks at a bounded
// number of keys, and goes on behind them the next time, so that keys that are
// held up cost others little.
func (r *Relay) claimKeyed(ctx context.Context, n int) ([]row, error) {
	wrapped := r.key == ""
	for range keyRounds {
		seqs, last, err := r.rows.heads(ctx, r.key, n)
		if err != nil {
			return nil, err
		}
		r.key = last
		if len(seqs) > 0 {
			if claimed, err := r.rows.first(ctx, seqs); err != nil || len(claimed) > 0 {
				return claimed, err
			}
		}
		if last == "" {
			if wrapped {
				break
			}
			wrapped = true // once more, from the first key
		}
	}
	return nil, nil
}

// rest waits, and returns false if ctx ended.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
