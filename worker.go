package tallyman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nuid"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/sweep"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/lease"
	"github.com/tallyman-go/tallyman/stream"
)

// Defaults of WorkerConfig.
const (
	DefaultConcurrency = 100
	DefaultDrain       = 20 * time.Second
	DefaultGrace       = 5 * time.Second
)

// WorkerConfig of a Worker. Only Mux is required.
type WorkerConfig struct {
	// Mux finds the handler of a kind. Required; must not change any more.
	Mux *Mux
	// Queues to work on. Default "default".
	Queues []string
	// Concurrency is how many handlers run at once. Default 100.
	Concurrency int
	// Drain is how long handlers may go on after Run's context has ended.
	// Then their contexts end with ErrDraining and they are handed back.
	// Default 20 s; negative means not at all.
	Drain time.Duration
	// Grace is how long a handler may take to return once its context has
	// ended. After that it is reported as stuck, its attempt is settled
	// without it and its slot is free again. Default 5 s.
	Grace time.Duration
	// Name of the worker in records and logs; a unique suffix is added.
	// Default the host name.
	Name string
	// Logger gets what an operator should know. Default slog.Default().
	Logger *slog.Logger
	// Observe, if set, is called with every Event. It must be quick and safe
	// for concurrent use.
	Observe func(Event)
}

// Worker claims commands, runs their handlers and writes their receipts.
type Worker struct {
	pool  *Pool
	cfg   WorkerConfig
	owner string
	log   *slog.Logger

	keeper   *lease.Keeper
	notes    *notebook
	sweepers []*sweep.Sweeper // by shard; none where acks take commands out
	fetchers []fetcher
	sources  []source        // of each fetcher
	wake     []chan struct{} // of each fetcher
	rations  *rations        // nil if there is one fetcher

	values  context.Context // parent of every handler's context; it never ends by itself
	stopped atomic.Bool     // handlers are to end

	accord accord                  // about the layout of the pool
	end    context.CancelCauseFunc // stops fetching, and so Run, because of an error

	life context.Context // of everything that sees a delivery through
	die  context.CancelFunc

	slots    slots
	draining atomic.Bool
	shut     []atomic.Int64 // by shard: until when, in Unix nanoseconds, strays are not forwarded there

	troubleMu sync.Mutex
	trouble   map[source]error // why nothing can be fetched
}

// source is where a fetcher pulls from.
type source struct {
	queue string
	shard *shard
}

// String names the queue and, where there are several, the stream.
func (s source) String() string {
	if s.shard.index == 0 {
		return strconv.Quote(s.queue)
	}
	return strconv.Quote(s.queue) + " of stream " + stream.Name(s.shard.name)
}

// NewWorker returns a worker of the pool. Run it once.
func (p *Pool) NewWorker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Mux == nil || len(cfg.Mux.Kinds()) == 0 {
		return nil, errors.New("tallyman: a worker needs a Mux with at least one handler")
	}
	if len(cfg.Queues) == 0 {
		cfg.Queues = []string{command.DefaultQueue}
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = DefaultConcurrency
	}
	if cfg.Drain == 0 {
		cfg.Drain = DefaultDrain
	}
	if cfg.Grace <= 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Name == "" {
		cfg.Name, _ = os.Hostname() // an empty name is made good by the suffix
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	w := &Worker{pool: p, cfg: cfg, shut: make([]atomic.Int64, len(p.shards)), owner: cfg.Name + "-" + nuid.Next()[16:], trouble: map[source]error{}}
	w.log = cfg.Logger.With("worker", w.owner)
	w.life, w.die = context.WithCancel(context.Background())
	w.slots.init(cfg.Concurrency, p.settings.Lease)
	w.notes = newNotebook(p.of, w.log)
	w.accord.judge, w.accord.trust = p.sameLayout, accordTime
	if p.nc != nil { // a double is never spread anew
		w.accord.read = func(ctx context.Context) (kvstate.Entry, error) {
			return p.shards[0].records.Read(ctx, kvstate.KeySettings)
		}
	}
	w.sweepers = newSweepers(w)
	w.keeper = lease.NewKeeper(lease.Terms{Wait: p.settings.Lease}, w.beat)
	seen := map[string]bool{}
	for _, q := range cfg.Queues {
		if err := command.ValidateName("queue", q); err != nil {
			return nil, fmt.Errorf("tallyman: new worker: %w", err)
		}
		if seen[q] {
			return nil, fmt.Errorf("tallyman: new worker: queue %q is named twice", q)
		}
		seen[q] = true
	}
	if n := len(cfg.Queues) * len(p.shards); n > 1 {
		w.rations = newRations(n, w.slots.free, func(i int) { wake(w.wake[i]) })
	}
	for _, q := range cfg.Queues {
		for _, s := range p.shards {
			i := len(w.fetchers)
			var ration func(int, uint64, bool) (int, bool)
			if w.rations != nil {
				ration = func(asked int, behind uint64, able bool) (int, bool) { return w.rations.more(i, asked, behind, able) }
			}
			wake := make(chan struct{}, 1)
			w.wake = append(w.wake, wake)
			from := source{queue: q, shard: s}
			w.sources = append(w.sources, from)
			w.fetchers = append(w.fetchers, s.commands.NewFetcher(stream.FetchConfig{
				Queue:   q,
				Pool:    p.name,
				Expires: min(p.settings.Lease/6, 5*time.Second),
				Want:    w.slots.want,
				Ration:  ration,
				Wake:    wake,
				Deliver: func(batch []*stream.Delivery) { w.take(s, batch) },
				Notice:  func(err error) { w.notice(from, err) },
			}))
		}
	}
	return w, nil
}

// Owner returns the name under which this worker writes records.
func (w *Worker) Owner() string { return w.owner }

// InFlight returns how many deliveries the worker holds, and how many handlers run.
func (w *Worker) InFlight() (held, running int) { return w.slots.counts() }

// Run works until ctx ends, then drains: it fetches no more, hands back what
// has not begun, gives handlers the drain time and settles what they did. It
// returns nil after that. Errors: ErrNoQueue and ErrSettings at the start (see Pool.Altered),
// ErrSettings once the pool has been spread over another number of shards, or that
// the connection was closed for good.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.pool.persist(ctx, w.check); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it had begun
		}
		return fmt.Errorf("tallyman: run worker: %w", err)
	}
	w.values = context.WithoutCancel(ctx)
	defer w.die()

	keeping, stopKeeping := context.WithCancel(context.Background())
	var keeper sync.WaitGroup
	keeper.Go(func() { w.keeper.Run(keeping) })
	keeper.Go(func() { w.notes.run(keeping) })

	sweeping, stopSweeping := context.WithCancel(context.Background())
	var sweepers sync.WaitGroup
	for _, s := range w.sweepers {
		sweepers.Go(func() { s.Run(sweeping) })
	}

	fetching, stopFetching := context.WithCancelCause(ctx)
	w.end = stopFetching
	var fetchers sync.WaitGroup
	for _, f := range w.fetchers {
		fetchers.Go(func() {
			if err := f.Run(fetching); err != nil {
				stopFetching(err)
			}
		})
	}
	w.log.Info("worker started", "pool", w.pool.name, "queues", w.cfg.Queues, "kinds", w.cfg.Mux.Kinds(),
		"concurrency", w.cfg.Concurrency, "lease", w.pool.settings.Lease)

	<-fetching.Done()
	failed := context.Cause(fetching)
	if ctx.Err() != nil {
		failed = nil
	}
	w.draining.Store(true)
	fetchers.Wait()
	stopFetching(nil)
	w.drain()
	stopSweeping()
	sweepers.Wait()
	stopKeeping()
	keeper.Wait()
	if failed != nil {
		return fmt.Errorf("tallyman: run worker: %w", failed)
	}
	return nil
}

// check makes sure that the queues exist in every shard, keep the lease that the
// pool agreed on, and that nothing was altered on which the worker relies.
func (w *Worker) check(ctx context.Context) error {
	pool := w.pool
	if err := eachShard(0, len(pool.shards), func(i int) error {
		is, err := pool.altered(ctx, pool.shards[i])
		if err != nil {
			return withRemedy(translate(err), ErrNoPool, pool.remedy())
		}
		return refuse(is)
	}); err != nil {
		return err
	}
	return eachShard(0, len(w.sources), func(i int) error {
		from := w.sources[i]
		q, err := from.shard.commands.Queue(ctx, from.queue)
		if errors.Is(err, stream.ErrNoQueue) {
			return fmt.Errorf("%w: %v; create it with: tallyman init --pool %s --queue %s", ErrNoQueue, from, pool.name, from.queue)
		}
		if err != nil {
			return withRemedy(translate(err), ErrNoPool, pool.remedy())
		}
		return refuse(pool.alteredQueue(from.shard, q))
	})
}

// drain ends what the worker holds. It uses times of its own: Run's context is over.
func (w *Worker) drain() {
	held, running := w.slots.counts()
	w.log.Info("worker drains", "held", held, "running", running, "drain", w.cfg.Drain)
	for _, r := range w.slots.close() {
		r.handBack()
	}
	within := func(d time.Duration, wait func(context.Context)) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		wait(ctx)
	}
	within(max(w.cfg.Drain, 0), w.slots.waitRunning)
	w.stop()
	within(w.cfg.Grace, w.slots.waitRunning)
	if _, running = w.slots.counts(); running == 0 {
		within(settleTime, w.slots.waitHeld)
	} else {
		// Handlers that ignore their context die with the process, and their
		// commands are taken over. What others wrote is still to be settled.
		within(time.Second, w.slots.waitHeld)
	}
	w.die()
	within(time.Second, w.slots.waitHeld)
	if err := w.pool.link.Flush(time.Second); err != nil {
		w.log.Warn("last acks may be lost; their commands come again and are absorbed", "error", err)
	}
	held, running = w.slots.counts()
	w.log.Info("worker stopped", "left_to_their_leases", held, "stuck", running)
}

// stop ends the contexts of all handlers, and of those that begin from now on.
func (w *Worker) stop() {
	w.stopped.Store(true)
	for _, h := range w.keeper.Holders() {
		h.(*run).stop()
	}
}

// notice keeps and logs why nothing can be fetched from a source; nil when it can again.
func (w *Worker) notice(from source, err error) {
	w.troubleMu.Lock()
	defer w.troubleMu.Unlock()
	w.trouble[from] = err
	if err != nil {
		w.log.Warn("cannot fetch", "queue", from.queue, "stream", stream.Name(from.shard.name), "error", err)
		go w.recheck() // a shard that has gone takes its consumers along
	} else {
		w.log.Info("fetching again", "queue", from.queue, "stream", stream.Name(from.shard.name))
	}
}

// Ready returns nil if the worker can do its work: the server answers its
// pulls and takes its writes, and no other tool has altered what it relies on.
// Otherwise the error says what is wrong.
func (w *Worker) Ready(ctx context.Context) error {
	if w.draining.Load() {
		return ErrDraining
	}
	if n := w.slots.stuckCount(); n >= w.cfg.Concurrency {
		return fmt.Errorf("tallyman: all slots (%d) are taken by handlers that ignore the end of their context; restart the worker", n)
	}
	limit := 2*min(w.pool.settings.Lease/6, 5*time.Second) + 3*time.Second
	// What is not acked is delivered again after a lease, and so is a denied ack sent again.
	if subject := w.pool.link.Denied(time.Now().Add(-w.pool.settings.Lease-limit), w.vital); subject != "" {
		return fmt.Errorf("tallyman: %w: publish to %q; allow it, see Permissions in docs/operations.md", ErrDenied, subject)
	}
	if err := w.fetches(); err != nil {
		if why := w.check(ctx); errors.Is(why, ErrSettings) { // with the remedy
			err = why
		}
		return fmt.Errorf("tallyman: %w", err)
	}
	for i, f := range w.fetchers {
		// With every slot taken there is no pull to be answered, nor while others have their turn.
		if w.rations != nil && !w.rations.asks(i) && !f.Alive().IsZero() {
			continue
		}
		if f.Alive().IsZero() && w.slots.free() > 0 {
			return fmt.Errorf("tallyman: no pull from queue %v has been answered yet", w.sources[i])
		}
		if age := since(f.Alive()); age > limit && w.slots.free() > 0 {
			return fmt.Errorf("tallyman: no pull from queue %v was answered for %v", w.sources[i], age.Round(time.Second))
		}
	}
	checked := w.check(ctx)
	if errors.Is(checked, ErrSettings) { // which may be why nothing can be written
		return fmt.Errorf("tallyman: %w", checked)
	}
	if err := eachShard(0, len(w.pool.shards), func(i int) error { return w.pool.writable(ctx, w.pool.shards[i], w.owner) }); err != nil {
		return err
	}
	if checked != nil {
		return fmt.Errorf("tallyman: %w", checked)
	}
	return nil
}

// fetches returns nil unless the server refuses pulls.
func (w *Worker) fetches() error {
	w.troubleMu.Lock()
	defer w.troubleMu.Unlock()
	for from, err := range w.trouble {
		if err != nil {
			return fmt.Errorf("cannot fetch from queue %v: %w", from, err)
		}
	}
	return nil
}

// vital reports whether a subject is one on which this worker pulls or acks.
func (w *Worker) vital(subject string) bool {
	if !strings.HasPrefix(subject, "$JS.ACK.") && !strings.HasPrefix(subject, "$JS.API.CONSUMER.MSG.NEXT.") {
		return false
	}
	return slices.ContainsFunc(w.pool.shards, func(s *shard) bool {
		return strings.Contains(subject, "."+stream.Name(s.name)+".")
	})
}

// writable returns nil once the server has taken a write into the shard's bucket.
func (p *Pool) writable(ctx context.Context, s *shard, owner string) error {
	err := s.records.Probe(ctx, kvstate.ProbeKey(owner))
	if err == nil {
		return nil
	}
	// Nobody listens where a bucket was: who leads its stream knows why.
	if _, why := s.records.Read(ctx, kvstate.KeySettings); errors.Is(err, kvstate.ErrUnavailable) && errors.Is(why, kvstate.ErrNoBucket) {
		return fmt.Errorf("tallyman: cannot write a record to bucket %q, which does not exist, so that whatever was in it is lost: %w", s.name, withRemedy(translate(why), ErrNoPool, p.remedy()))
	}
	return fmt.Errorf("tallyman: cannot write a record to bucket %q: %w", s.name, translate(err))
}
