package tallyman

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// Defaults of ProducerConfig.
const (
	DefaultWindow  = 1024
	DefaultConfirm = 10 * time.Second
)

// ProducerConfig of a Producer. The zero value is useful.
type ProducerConfig struct {
	// Window is how many submissions may be under way at once; further ones
	// wait. Default 1,024.
	Window int
	// Confirm is how long a submission whose context has no deadline goes on
	// trying before it ends with ErrUnconfirmed or ErrPoolFull. Default 10 s.
	Confirm time.Duration
}

// Submission is the answer to a submitted command.
type Submission struct {
	ID string
	// Sequence of the command in the pool's stream; 0 if it was absorbed by a
	// record and the sequence is not known any more.
	Sequence uint64
	// Absorbed says that the command had been accepted before, and nothing changed.
	Absorbed bool
	// State is where an absorbed command stands, if a worker has written
	// about it yet: Completed, Parked, ... Empty otherwise.
	State State
}

// Producer submits commands. It is safe for concurrent use; its submissions
// share one window.
type Producer struct {
	pool   *Pool
	cfg    ProducerConfig
	window chan struct{}

	mu     sync.Mutex
	lanes  []lane                   // by shard
	flying map[*submission]struct{} // each has a place in the window
	closed bool

	work sync.WaitGroup // goroutines of submissions that need more than one try
	life context.Context
	end  context.CancelFunc
}

// NewProducer returns a producer of the pool.
func (p *Pool) NewProducer(cfg ProducerConfig) *Producer {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	if cfg.Confirm <= 0 {
		cfg.Confirm = DefaultConfirm
	}
	life, end := context.WithCancel(context.Background())
	return &Producer{
		pool: p, cfg: cfg, window: make(chan struct{}, cfg.Window), life: life, end: end,
		lanes: make([]lane, len(p.shards)), flying: map[*submission]struct{}{},
	}
}

// Submit submits one command with the pool's shared producer; see Producer.Submit.
func (p *Pool) Submit(ctx context.Context, c Command) (Submission, error) {
	return p.shared().Submit(ctx, c)
}

func (p *Pool) shared() *Producer {
	p.submitOnce.Do(func() { p.producer = p.NewProducer(ProducerConfig{}) })
	return p.producer
}

// Close waits for submissions under way, at most until ctx ends, and then
// gives them up: their callbacks get ErrUnconfirmed.
func (p *Producer) Close(ctx context.Context) error {
	for range cap(p.window) {
		select {
		case p.window <- struct{}{}:
		case <-p.life.Done():
			p.close()
			return nil // closed before
		case <-ctx.Done():
			p.close()
			return fmt.Errorf("tallyman: close producer: %w", context.Cause(ctx))
		}
	}
	p.close()
	return nil
}

func (p *Producer) close() {
	p.end()
	p.mu.Lock()
	p.closed = true
	left := slices.Collect(maps.Keys(p.flying))
	p.mu.Unlock()
	p.work.Wait()
	for _, s := range left {
		s.giveUp(errClosed)
	}
}

var errClosed = errors.New("the producer was closed")

// begin makes room in p.work for a goroutine, unless the producer is closed.
func (p *Producer) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.work.Add(1)
	}
	return !p.closed
}

// leave gives up the place of s in the window.
func (p *Producer) leave(s *submission) {
	p.mu.Lock()
	delete(p.flying, s)
	p.mu.Unlock()
	<-p.window
}

// Submit submits a command and returns once it is durable in the pool, or ctx ends.
// Submitting the same command again, at any time while its receipt is kept, is
// absorbed and says so.
//
// Errors: ErrInvalidID, ErrInvalidName, ErrTooLarge; ErrConflict if the id
// stands for another kind or payload; ErrPoolFull if the pool stayed full, and
// ErrUnconfirmed if the server did not answer, for as long as ctx, or
// ProducerConfig.Confirm, allowed. After both of these the same command may
// safely be submitted again; after ErrUnconfirmed it may have been accepted.
func (p *Producer) Submit(ctx context.Context, c Command) (Submission, error) {
	type answer struct {
		sub Submission
		err error
	}
	answers := make(chan answer, 1)
	if err := p.SubmitAsync(ctx, c, func(s Submission, err error) { answers <- answer{s, err} }); err != nil {
		return Submission{ID: c.ID}, err
	}
	a := <-answers
	return a.sub, a.err
}

// SubmitAsync is Submit that does not wait for the outcome. It waits for room
// in the window, which is the back-pressure, at most until ctx ends. Done gets
// the outcome, ErrUnconfirmed as soon as ctx ends, on a goroutine of its own or
// of the producer, and must not block. If
// SubmitAsync itself returns an error, nothing was submitted and done is not called.
func (p *Producer) SubmitAsync(ctx context.Context, c Command, done func(Submission, error)) error {
	return p.submit(ctx, c, nil, done)
}

func (p *Producer) submit(ctx context.Context, c Command, m *many, done func(Submission, error)) error {
	if ctx.Err() != nil {
		return fmt.Errorf("tallyman: submit %q: nothing was sent: %w", c.ID, context.Cause(ctx))
	}
	env, err := dedupe.Identify(c)
	if err != nil {
		return fmt.Errorf("tallyman: submit: %w", err)
	}
	if n := len(env.Payload); n > p.pool.shards[0].commands.Limit() {
		return fmt.Errorf("tallyman: submit %q: %w: the payload has %d bytes, the limit is %d; store the body elsewhere and submit a reference", c.ID, ErrTooLarge, n, p.pool.shards[0].commands.Limit())
	}
	select {
	case p.window <- struct{}{}:
	default:
		select {
		case p.window <- struct{}{}:
		case <-p.life.Done(): // Close keeps the window
			return fmt.Errorf("tallyman: submit %q: the producer is closed", c.ID)
		case <-ctx.Done():
			return fmt.Errorf("tallyman: submit %q: no room in the window of %d: %w", c.ID, cap(p.window), context.Cause(ctx))
		}
	}
	if err := p.life.Err(); err != nil {
		<-p.window
		return fmt.Errorf("tallyman: submit %q: the producer is closed", c.ID)
	}
	s := &submission{p: p, home: p.pool.of(env.Token), ctx: ctx, env: env, done: done, many: m}
	s.start()
	return nil
}

// SubmitMany submits every command of the sequence, a window of them at a
// time, and calls report with each outcome, in the order in which they become
// known; i counts the commands from 0. Report is called by one goroutine at a
// time. SubmitMany returns when all outcomes are in, with ctx's error if it
// ended before the sequence did. Outcomes that are errors do not end it.
func (p *Producer) SubmitMany(ctx context.Context, commands iter.Seq[Command], report func(i int, s Submission, err error)) error {
	var (
		mu      sync.Mutex
		pending sync.WaitGroup
	)
	tell := func(i int, s Submission, err error) {
		mu.Lock()
		defer mu.Unlock()
		report(i, s, err)
	}
	m := new(many)
	stop := context.AfterFunc(ctx, func() { p.giveUpMany(m, context.Cause(ctx)) })
	defer stop()
	defer pending.Wait()
	next := 0
	for c := range commands {
		i := next // of this command: its callback may come when the loop is further on
		next++
		if ctx.Err() != nil {
			return fmt.Errorf("tallyman: submit many: %w", context.Cause(ctx))
		}
		pending.Add(1)
		if err := p.submit(ctx, c, m, func(s Submission, err error) {
			tell(i, s, err)
			pending.Done()
		}); err != nil {
			pending.Done()
			tell(i, Submission{ID: c.ID}, err)
		}
	}
	return nil
}

// errConflict describes two commands that share an id.
func errConflict(env command.Envelope, kind string, digest command.Digest) error {
	if kind != env.Kind {
		return fmt.Errorf("tallyman: submit %q: %w: the id stands for a command of kind %q, this one is of kind %q; an id names one act, use another", env.ID, ErrConflict, kind, env.Kind)
	}
	return fmt.Errorf("tallyman: submit %q: %w: the id stands for a command with another payload (digest %s, this one has %s); an id names one act, use another", env.ID, ErrConflict, digest, env.Digest)
}

// errFull says what the server refused for want of room.
func errFull(id string, last error) error {
	return fmt.Errorf("tallyman: submit %q: %w; wait for the workers, or raise its bound with tallyman init --max-commands or --max-bytes: %w", id, ErrPoolFull, last)
}

// errUnconfirmed says that nothing is known, and what was tried last.
func errUnconfirmed(id string, last error) error {
	return fmt.Errorf("tallyman: submit %q: %w, submitting it again is safe: %w", id, ErrUnconfirmed, last)
}

// isOneOf reports whether err is any of the given errors.
func isOneOf(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
