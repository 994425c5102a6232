package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Defaults of RelayConfig.
const (
	DefaultWindow   = 256
	DefaultDrain    = 15 * time.Second
	DefaultRetryMin = time.Second
	DefaultRetryMax = time.Minute
)

const (
	// fetchTime is how long one pull stays open, and fetchBeat how often the
	// server says meanwhile that it is there.
	fetchTime = 5 * time.Second
	fetchBeat = time.Second
	// markEvery is how often a relay notes how far the journal is published.
	markEvery = 10 * time.Second
)

// Submitter submits commands and calls done once each of them is durable in
// the pool, or refused. *tallyman.Producer is one, with S = tallyman.Submission.
type Submitter[S any] interface {
	SubmitAsync(ctx context.Context, c command.Command, done func(S, error)) error
}

// RelayConfig of a Relay. The zero value is useful.
type RelayConfig struct {
	// Window is how many decisions a relay holds at once. Default 256.
	Window int
	// RetryMin is the pause before a decision is tried again whose commands
	// could not all be submitted; it doubles each time up to RetryMax. Others
	// pass it meanwhile. Defaults 1 s and 1 min.
	RetryMin time.Duration
	RetryMax time.Duration
	// Drain is how long Run waits, once its context has ended, for submissions
	// under way. Default 15 s.
	Drain time.Duration
	// Logger of what goes wrong. Default slog.Default().
	Logger *slog.Logger
}

// RelayStats counts what a relay did since it was made.
type RelayStats struct {
	Published uint64 // decisions all of whose commands are in the pool
	Commands  uint64 // commands in them, those that were absorbed included
	Refused   uint64 // commands that can never be submitted, and were parked
	Retried   uint64 // decisions given back for another try
	Damaged   uint64 // deliveries that did not decode
}

// Relay carries the commands of decisions into the pool. Any number of relays
// may run side by side, in one process or many.
type Relay struct {
	j      *Journal
	submit func(context.Context, command.Command, func(error)) error
	cfg    RelayConfig
	log    *slog.Logger
	owner  string
	slots  chan struct{}
	held   sync.WaitGroup // decisions that Run has taken on
	freed  chan struct{}  // tells that a slot became free
	lease  time.Duration  // set by Run before the first delivery

	published, commands, refused, retried, damaged atomic.Uint64
}

// NewRelay returns a relay that submits with to; Run starts it.
func NewRelay[S any](j *Journal, to Submitter[S], cfg RelayConfig) *Relay {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&cfg.RetryMin, DefaultRetryMin}, {&cfg.RetryMax, DefaultRetryMax}, {&cfg.Drain, DefaultDrain}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	cfg.RetryMax = max(cfg.RetryMax, cfg.RetryMin)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	owner := "relay-" + nuid.Next()
	return &Relay{
		j: j, cfg: cfg, owner: owner, log: cfg.Logger.With("pool", j.pool, "relay", owner),
		slots: make(chan struct{}, cfg.Window), freed: make(chan struct{}, 1),
		submit: func(ctx context.Context, c command.Command, done func(error)) error {
			return to.SubmitAsync(ctx, c, func(_ S, err error) { done(err) })
		},
	}
}

// Stats returns what the relay did so far. It is safe for concurrent use.
func (r *Relay) Stats() RelayStats {
	return RelayStats{
		Published: r.published.Load(), Commands: r.commands.Load(), Refused: r.refused.Load(),
		Retried: r.retried.Load(), Damaged: r.damaged.Load(),
	}
}

// Run relays until ctx ends, and returns nil once everything it started has
// ended. It survives lost connections, restarted servers and a consumer that
// is missing for a while, and logs why nothing moves. It returns an error if
// the connection is closed for good, or the journal does not exist to begin with.
func (r *Relay) Run(ctx context.Context) error {
	cons, err := r.consumer(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r.lease = cons.CachedInfo().Config.AckWait
	// Submissions outlive ctx, so that what is under way can be finished.
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var marking sync.WaitGroup
	life, end := context.WithCancel(ctx)
	defer end()
	marking.Go(func() { r.mark(life) })
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(r.cfg.Drain, abandon) })
	defer stop()
	err = r.fetch(ctx, working, cons)
	r.held.Wait()
	end()
	marking.Wait()
	if r.j.nc.IsConnected() {
		r.note()
	}
	return err
}

// consumer finds the journal's consumer, again and again while the servers are not ready.
func (r *Relay) consumer(ctx context.Context) (jetstream.Consumer, error) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		ask, cancel := context.WithTimeout(ctx, askTime)
		cons, err := r.j.js.Consumer(ask, r.j.stream, consumer)
		cancel()
		if err == nil {
			return cons, nil
		}
		err = fmt.Errorf("journal: relay of %q: %w", r.j.stream, absent(err, r.j.pool))
		if errors.Is(err, ErrNoJournal) || errors.Is(err, nats.ErrConnectionClosed) || pipeline.Sleep(ctx, pause) != nil {
			return nil, err
		}
	}
}

// fetch pulls decisions until ctx ends. An error means that it cannot go on.
func (r *Relay) fetch(ctx, working context.Context, cons jetstream.Consumer) error {
	notices := notices{log: r.log}
	pause := firstPause
	for {
		n := r.room(ctx)
		if n == 0 {
			return nil
		}
		pull, cancel := context.WithTimeout(ctx, fetchTime)
		batch, err := cons.Fetch(n, jetstream.FetchContext(pull), jetstream.FetchHeartbeat(fetchBeat))
		if err == nil {
			for m := range batch.Messages() {
				r.take(ctx, working, m)
			}
			err = batch.Error()
		}
		cancel()
		if r.j.nc.IsClosed() {
			return fmt.Errorf("journal: relay of %q: %w", r.j.stream, nats.ErrConnectionClosed)
		}
		if ctx.Err() != nil || err == nil || errors.Is(err, context.DeadlineExceeded) {
			notices.works()
			pause = firstPause
			continue
		}
		notices.fails(absent(err, r.j.pool))
		_ = pipeline.Sleep(ctx, pause) // if ctx ends, there is no more room
		pause = min(2*pause, lastPause)
	}
}

// room waits until enough slots are free for a pull that is worth it, and
// returns how many; 0 once ctx has ended.
func (r *Relay) room(ctx context.Context) int {
	for ctx.Err() == nil {
		if n := cap(r.slots) - len(r.slots); n > 0 && 4*n >= cap(r.slots) {
			return n
		}
		select {
		case <-r.freed:
		case <-ctx.Done():
		}
	}
	return 0
}

// take starts on one delivery. It waits for room in the submitter, which is
// what holds a relay back that is faster than the pool.
func (r *Relay) take(ctx, working context.Context, m jetstream.Msg) {
	p := &parcel{r: r, ctx: working, m: m, at: time.Now()}
	if ctx.Err() != nil {
		p.giveBack(0) // untouched: whoever is left takes it at once
		return
	}
	r.slots <- struct{}{} // there is room: no more were asked for
	r.held.Add(1)
	p.open()
}

func (r *Relay) release() {
	<-r.slots
	select {
	case r.freed <- struct{}{}:
	default:
	}
	r.held.Done()
}

// mark notes from time to time how far the journal is published.
func (r *Relay) mark(ctx context.Context) {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.note()
		case <-ctx.Done():
			return
		}
	}
}

// note does so under a context of its own: at the end the caller's is over.
func (r *Relay) note() {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	if err := r.j.notePublished(ctx); err != nil {
		r.log.Debug("could not note how far the journal is published; trying again later", "error", err)
	}
}

// notePublished stores the consumer's ack floor, so that a consumer that gets
// lost is made again there.
func (j *Journal) notePublished(ctx context.Context) error {
	// The stream first: if it is replaced between the two, what is noted counts
	// for the old one, and so for nothing.
	created, err := j.created(ctx)
	if err != nil {
		return err
	}
	info, err := j.consumerInfo(ctx)
	if err != nil {
		return err
	}
	return j.advanceMark(ctx, func(m *mark) bool {
		if info.AckFloor.Stream <= m.PublishedThrough && !another(m.PublishedOf, created) {
			return false
		}
		m.PublishedThrough, m.PublishedOf = info.AckFloor.Stream, created
		return true
	})
}

// notices logs why nothing moves once per reason, and when it moves again.
type notices struct {
	log    *slog.Logger
	failed string
}

func (n *notices) fails(err error) {
	if n.failed != err.Error() {
		n.failed = err.Error()
		n.log.Warn("the relay gets no decisions", "error", err)
	}
}

func (n *notices) works() {
	if n.failed != "" {
		n.failed = ""
		n.log.Info("the relay gets decisions again")
	}
}
