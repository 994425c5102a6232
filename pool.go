package tallyman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// DefaultPool is the name of the pool where none is given.
const DefaultPool = "main"

// Pool is one named set of JetStream assets: a command stream, a bucket of
// records and a consumer for each queue, as often as it has shards. It is safe for concurrent use.
type Pool struct {
	name     string
	link     link
	shards   []*shard // at least one
	settings Settings

	// What needs the connection itself; nil on a double.
	nc   *nats.Conn
	pipe *pipeline.Pipe

	submitOnce sync.Once
	producer   *Producer // for follow-ups and Submit
}

// Open returns a pool that exists. Errors: ErrNoPool if it does not,
// ErrSettings if its settings cannot be read by this version, ErrDenied.
// Close it when done; nc stays open and remains the caller's.
//
// While the servers elect a leader, or none can be reached, Open asks again, until ctx ends or, where it
// has no deadline, for 30 s.
//
// Make nc with Connect, or give it ConnectOptions.
func Open(ctx context.Context, nc *nats.Conn, name string) (*Pool, error) {
	if err := command.ValidateName("pool", name); err != nil {
		return nil, fmt.Errorf("tallyman: open pool: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("tallyman: open pool %q: %w", name, err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		return nil, fmt.Errorf("tallyman: open pool %q: %w", name, err)
	}
	p := &Pool{name: name, nc: nc, pipe: pipe, link: connection{nc, pipe}}
	if err := p.persist(ctx, func(ctx context.Context) error { return p.open(ctx, js) }); err != nil {
		pipe.Close()
		return nil, fmt.Errorf("tallyman: open pool %q: %w", name, err)
	}
	return p, nil
}

func (p *Pool) open(ctx context.Context, js jetstream.JetStream) error {
	first, e, err := p.openShard(ctx, js, 0)
	if err != nil {
		return err
	}
	var is place
	if p.settings, is, err = decodeSettings(e.Raw); is != (place{}) {
		return misplaced(place{}, is)
	}
	if err != nil {
		return err
	}
	first.bucket.Keep(p.settings.Retention)
	p.shards = make([]*shard, p.settings.Shards)
	p.shards[0] = first
	if err := p.openOthers(ctx, js); err != nil {
		return err
	}
	for _, s := range p.shards {
		if is := removalOf(s.stream); is != p.settings.Removal {
			return errUnlike(p.settings.Removal, is)
		}
	}
	if p.settings.Commit == CommitGroup {
		for _, s := range p.shards {
			s.bucket.Gather(p.ungrouped)
			s.stream.Gather(p.ungrouped)
		}
	}
	return nil
}

// ungrouped tells that writes go one by one although the settings say otherwise.
func (p *Pool) ungrouped(err error) {
	slog.Default().Warn("writes are committed one by one for now; repeat tallyman init to have them grouped", "pool", p.name, "error", err)
}

const (
	// openTime is how long Open and a starting worker ask for a leader's
	// answer where their context sets no limit.
	openTime = 30 * time.Second
	// askTime bounds one such question.
	askTime = 5 * time.Second
)

// persist calls f until it succeeds, fails for good, or ctx ends: while a
// cluster elects a leader, questions get no answer or a refusal, and while the
// connection is away they cannot be sent. It ends early
// once the server denies what f asks for, with an error that names the subject.
func (p *Pool) persist(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := pipeline.Within(ctx, openTime)
	defer cancel()
	ctx, stop := p.link.UntilDenied(ctx)
	defer stop()
	for {
		ask, cancel := context.WithTimeout(ctx, askTime)
		err := f(ask)
		cancel()
		denied := context.Cause(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(denied, ErrDenied):
			return denied
		case !isOneOf(err, context.DeadlineExceeded, nats.ErrTimeout, nats.ErrReconnectBufExceeded, ErrUnavailable, pipeline.ErrIndeterminate):
			return err
		}
		if pipeline.Sleep(ctx, 250*time.Millisecond) != nil {
			if denied := context.Cause(ctx); errors.Is(denied, ErrDenied) {
				return denied
			}
			return err
		}
	}
}

func withRemedy(err, kind error, remedy string) error {
	if errors.Is(err, kind) {
		return fmt.Errorf("%w; %s", err, remedy)
	}
	return err
}

// Close releases what the pool holds on its connection. Workers and producers
// of the pool must have ended.
func (p *Pool) Close() error {
	if p.producer != nil {
		p.producer.close()
	}
	return p.link.Close()
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// Settings returns what the participants of the pool agreed on.
func (p *Pool) Settings() Settings { return p.settings }

// Commands returns the command stream of the pool's first shard, for tools that look behind the scenes.
func (p *Pool) Commands() *stream.Stream { return p.shards[0].stream }

// Records returns the bucket of the pool's first shard, which also holds what
// belongs to the pool as a whole, for tools that look behind the scenes.
func (p *Pool) Records() *kvstate.Store { return p.shards[0].bucket }

// Find returns the record of a command; nil with ErrNotFound if there is none,
// which is so for commands that no worker has written about yet. Further
// errors: ErrInvalidID, ErrMalformed if the record is damaged, ErrDenied and
// ErrUnavailable.
func (p *Pool) Find(ctx context.Context, id string) (*kvstate.Record, error) {
	token, err := dedupe.Token(id)
	if err != nil {
		return nil, fmt.Errorf("tallyman: find: %w", err)
	}
	e, err := p.of(token).records.Read(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("tallyman: find %q: %w", id, translate(err))
	}
	if e.Err != nil {
		return nil, fmt.Errorf("tallyman: find %q: %w", id, e.Err)
	}
	if e.Record == nil {
		return nil, fmt.Errorf("tallyman: record of %q: %w", id, ErrNotFound)
	}
	return e.Record, nil
}

// translate gives errors of the lower packages the names that users know.
func translate(err error) error {
	for _, t := range []struct{ from, to error }{
		{stream.ErrTooLarge, ErrTooLarge},
		{kvstate.ErrTooLarge, ErrTooLarge},
		{stream.ErrFull, ErrPoolFull},
		{stream.ErrNoStream, ErrNoPool},
		{kvstate.ErrNoBucket, ErrNoPool},
		{stream.ErrNoQueue, ErrNoQueue},
		{stream.ErrRetention, ErrSettings},
		{pipeline.ErrNoResponders, ErrUnavailable},
	} {
		if errors.Is(err, t.from) && !errors.Is(err, t.to) {
			return fmt.Errorf("%w: %w", t.to, err)
		}
	}
	return err
}

// since is time.Since for times that may be zero.
func since(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}
