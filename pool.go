package tallyman

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
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

// Connect connects to the servers of a comma-separated list of URLs with the
// options of ConnectOptions. Further options come after these.
func Connect(urls string, options ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(urls, append(ConnectOptions(), options...)...)
	var bad *url.Error
	if errors.As(err, &bad) { // its text holds the URL
		return nil, fmt.Errorf("tallyman: connect to %s: not a valid URL; write special characters of user and password as %%XX", redact(urls))
	}
	if err != nil {
		return nil, fmt.Errorf("tallyman: connect to %s: %w", redact(urls), err)
	}
	return nc, nil
}

// redact spells URLs of servers without user, password and token.
func redact(urls string) string {
	each := strings.Split(urls, ",")
	for i, u := range each {
		at := strings.LastIndexByte(u, '@')
		if at < 0 {
			continue
		}
		begin := 0
		if scheme := strings.Index(u[:at], "://"); scheme >= 0 {
			begin = scheme + len("://")
		}
		each[i] = u[:begin] + "xxxxx" + u[at:]
	}
	return strings.Join(each, ",")
}

// ConnectOptions returns the options that a pool wants of a connection:
//
//   - It reconnects for ever.
//   - It keeps nothing in a buffer meanwhile, since an ack or write that is sent
//     minutes later may hit what is somebody else's by then.
//   - It gives up a server that has been silent for 15 s, half of the default
//     lease. By default that would take 6 minutes for a connection that
//     died without a word.
func ConnectOptions() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.PermissionErrOnSubscribe(true),
	}
}

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

// Topology says how a pool's assets are laid out.
type Topology struct {
	// Replicas of stream and bucket, 1 to 5. 0 leaves a pool that exists as it
	// is, and makes a new one with 1. With 3, an acknowledged write survives
	// the loss of a server.
	Replicas int
	// Queues to create beside those that exist. Default "default".
	Queues []string
	// MaxBytes and MaxCommands bound the command stream. 0 leaves the bounds of
	// a pool that exists, and gives a new one none; below 0 means no bound. A
	// full pool refuses new commands with ErrPoolFull; it never drops old ones.
	// Each shard gets its part, rounded up, so a pool may be full for the ids of one
	// shard while others have room.
	MaxBytes    int64
	MaxCommands int64
	// Change allows Create to alter the settings of a pool that exists. Stop
	// all workers first: they trust the lease that they started with.
	Change bool
}

// Create makes the pool's stream, bucket and consumers, and stores its
// settings. It is the operator's act and needs the right to create assets;
// workers and producers get by without. It is safe to repeat: zero fields of
// settings leave those of an existing pool as they are, and fields that differ
// are refused with ErrSettings unless topology.Change is set. While the cluster
// has no leader yet it fails with ErrUnavailable; what gets no answer is asked
// again, until ctx ends or 30 s and a second for each shard are over.
func Create(ctx context.Context, nc *nats.Conn, name string, settings Settings, topology Topology) error {
	if err := command.ValidateName("pool", name); err != nil {
		return fmt.Errorf("tallyman: create pool: %w", err)
	}
	if _, limited := ctx.Deadline(); !limited {
		// The client library's own limit is short for a cluster that elects leaders.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTime+time.Duration(settings.Shards)*time.Second)
		defer cancel()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, err)
	}
	defer pipe.Close()
	if err := pipeline.Again(ctx, createTime+time.Duration(settings.Shards)*time.Second, func(ctx context.Context) error {
		c := &creation{ctx: ctx, nc: nc, js: js, pipe: pipe, name: name, topology: topology}
		return c.run(settings)
	}); err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, translate(unheardOf(err)))
	}
	return nil
}

// unheardOf turns the error that something does not exist which was made just now into
// one that passes: on a cluster the server that is asked may not have heard of it yet.
func unheardOf(err error) error {
	if isOneOf(err, stream.ErrNoStream, kvstate.ErrNoBucket) {
		return fmt.Errorf("%w: what was made just now is not known everywhere yet, try again: %v", ErrUnavailable, err) //nolint:errorlint // it is not what the error says
	}
	return err
}

// agree stores the settings of a new pool, or brings wanted and stored ones together.
func agree(ctx context.Context, records *kvstate.Store, want Settings, change bool) (Settings, error) {
	for {
		e, err := records.Read(ctx, kvstate.KeySettings)
		if err != nil {
			return Settings{}, err
		}
		agreed := want.WithDefaults()
		if e.Raw != nil {
			have, is, err := decodeSettings(e.Raw, kvstate.Version)
			switch {
			case is != (place{}):
				return Settings{}, misplaced(place{}, is)
			case err != nil && (!change || isUnderway(err)):
				return Settings{}, err
			case err == nil && have.Shards != want.Shards:
				return Settings{}, have.Require(Settings{Shards: want.Shards}) // made by somebody else just now
			case err == nil:
				agreed = want.over(have)
			}
			if err == nil && agreed == have {
				return have, nil
			}
			if err == nil && agreed.Removal != have.Removal && !change {
				return Settings{}, errUnlike(have.Removal, agreed.Removal)
			}
			if !change {
				return Settings{}, have.Require(want)
			}
		}
		if err := agreed.Validate(); err != nil {
			return Settings{}, err
		}
		body, err := agreed.encode(place{}, kvstate.Version)
		if err != nil {
			return Settings{}, err
		}
		err = records.PutWait(ctx, kvstate.KeySettings, body, e.Revision)
		if errors.Is(err, kvstate.ErrStale) {
			continue // somebody else was creating the same pool
		}
		return agreed, err
	}
}

// over returns s with its zero fields taken from below.
func (s Settings) over(below Settings) Settings {
	if s.Lease == 0 {
		s.Lease = below.Lease
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = below.MaxAttempts
	}
	if s.BackoffMin == 0 {
		s.BackoffMin = below.BackoffMin
	}
	if s.BackoffMax == 0 {
		s.BackoffMax = below.BackoffMax
	}
	if s.Retention == 0 {
		s.Retention = below.Retention
	}
	s.Shards = cmp.Or(s.Shards, below.Shards)
	s.Removal = cmp.Or(s.Removal, below.Removal)
	s.Commit = cmp.Or(s.Commit, below.Commit)
	return s
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
	if p.settings, is, err = decodeSettings(e.Raw, kvstate.Version); is != (place{}) {
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
	// createTime bounds one try to make a pool; each shard adds a second.
	createTime = 10 * time.Second
)

// persist calls f until it succeeds, fails for good, or ctx ends: while a
// cluster elects a leader, questions get no answer or a refusal, and while the
// connection is away they cannot be sent. It ends early
// once the server denies what f asks for, with an error that names the subject.
func (p *Pool) persist(ctx context.Context, f func(context.Context) error) error {
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTime)
		defer cancel()
	}
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
// which is so for commands that no worker has written about yet.
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
