package tallyman

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// What workers and producers need of JetStream. Everything they do to the
// outside goes through these four, so that a double which injects faults
// (internal/memory) can take the place of a server.

// records is the bucket; [kvstate.Store] says what each method does.
type records interface {
	Read(ctx context.Context, key command.Token) (kvstate.Entry, error)
	Oldest(ctx context.Context, key command.Token) (kvstate.Entry, error)
	ReadMany(keys []command.Token, done func([]kvstate.Entry, error)) error
	Write(key command.Token, r *kvstate.Record, done func(revision uint64, err error)) error
	WriteWait(ctx context.Context, key command.Token, r *kvstate.Record) (uint64, error)
	Put(key command.Token, value []byte, expire bool, done func(revision uint64, err error)) error
	Note(ctx context.Context, about command.Token, unique string, n *kvstate.Note) error
	Probe(ctx context.Context, key command.Token) error
	Limit() int
}

// commands is the command stream; [stream.Stream] says what each method does.
type commands interface {
	Publish(env command.Envelope, done func(stream.Accepted, error)) error
	Republish(env command.Envelope, done func(stream.Accepted, error)) error
	Find(ctx context.Context, token command.Token) (stream.Stored, error)
	Get(ctx context.Context, seq uint64) (stream.Stored, error)
	Queue(ctx context.Context, name string) (stream.Queue, error)
	NewFetcher(cfg stream.FetchConfig) fetcher
	Limit() int
}

// fetcher pulls deliveries; see [stream.Fetcher].
type fetcher interface {
	Run(ctx context.Context) error
	Alive() time.Time
}

// link is what a pool asks of its connection beside that.
type link interface {
	// Flush returns once the server has everything that was sent.
	Flush(limit time.Duration) error
	// UntilDenied is [pipeline.Pipe.UntilDenied].
	UntilDenied(ctx context.Context) (context.Context, context.CancelFunc)
	// Denied is [pipeline.Pipe.Denied].
	Denied(since time.Time, match func(subject string) bool) string
	Close() error
}

// pulling is the command stream with fetchers of the interface's type.
type pulling struct{ *stream.Stream }

func (p pulling) NewFetcher(cfg stream.FetchConfig) fetcher { return p.Stream.NewFetcher(cfg) }

// connection is the link of a pool that was opened over one.
type connection struct {
	nc   *nats.Conn
	pipe *pipeline.Pipe
}

func (c connection) Flush(limit time.Duration) error { return c.nc.FlushTimeout(limit) }

func (c connection) UntilDenied(ctx context.Context) (context.Context, context.CancelFunc) {
	return c.pipe.UntilDenied(ctx)
}

func (c connection) Denied(since time.Time, match func(subject string) bool) string {
	return c.pipe.Denied(since, match)
}

func (c connection) Close() error { return c.pipe.Close() }
