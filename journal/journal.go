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
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// DefaultConfirm is how long a Commit or Replay goes on trying where its
// context has no deadline.
const DefaultConfirm = 10 * time.Second

// Pool is what a journal needs of its pool. *tallyman.Pool has it.
type Pool interface {
	Name() string
	// Records holds what belongs to the pool as a whole, and so the journal's own entries.
	Records() *kvstate.Store
	// CommandsOf and RecordsOf return stream and bucket of the shard that a token
	// belongs to; of a pool that is not sharded, always the same.
	CommandsOf(command.Token) *stream.Stream
	RecordsOf(command.Token) *kvstate.Store
}

// Options of a Journal. The zero value is useful.
type Options struct {
	// Logger gets warnings, such as damaged snapshots. Default slog.Default().
	Logger *slog.Logger
	// Confirm is how long a Commit whose context has no deadline goes on
	// trying before it ends with ErrUnconfirmed, and for how long a Replay, Load or
	// Audit bears that nothing is read. Default 10 s.
	Confirm time.Duration
}

// Journal is the journal of a pool. It is safe for concurrent use.
type Journal struct {
	pool    string
	js      jetstream.JetStream
	nc      *nats.Conn
	pipe    *pipeline.Pipe
	records *kvstate.Store // the journal's own entries; those of commands: recordsOf
	log     *slog.Logger
	confirm time.Duration
	stream  string
	prefix  string // of subjects

	commandsOf func(command.Token) *stream.Stream
	recordsOf  func(command.Token) *kvstate.Store

	mu    sync.Mutex
	heads map[command.Token]head // where runs were last seen; a hint that the write confirms

	damagedSnapshots atomic.Uint64
	missedSnapshots  atomic.Uint64
}

// head is the last decision of a run.
type head struct {
	seq uint64 // in the run; 0 for none
	at  uint64 // in the stream
}

// maxHeads bounds what a Journal remembers of runs.
const maxHeads = 4096

// Open returns the journal of a pool. ErrNoJournal means that it has none.
// Close it when done; nc stays open and remains the caller's, and pool too.
//
// Make nc with tallyman.Connect, or give it the same options.
func Open(ctx context.Context, nc *nats.Conn, pool Pool, opts Options) (*Journal, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("journal: open: %w", err)
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Confirm <= 0 {
		opts.Confirm = DefaultConfirm
	}
	j := &Journal{
		pool: pool.Name(), js: js, nc: nc, records: pool.Records(), commandsOf: pool.CommandsOf, recordsOf: pool.RecordsOf,
		log: opts.Logger.With("pool", pool.Name()), confirm: opts.Confirm,
		stream: Name(pool.Name()), prefix: subjectPrefix(pool.Name()), heads: map[command.Token]head{},
	}
	if _, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Stream, error) { return js.Stream(ctx, j.stream) }); err != nil {
		return nil, fmt.Errorf("journal: open %q: %w", j.stream, absent(err, j.pool))
	}
	if j.pipe, err = pipeline.New(nc, pipeline.Config{}); err != nil {
		return nil, fmt.Errorf("journal: open %q: %w", j.stream, err)
	}
	return j, nil
}

// Close releases what the journal holds on its connection. Its relays and
// commits must have ended.
func (j *Journal) Close() error { return j.pipe.Close() }

// Limit is the largest decision in bytes, as stored, that Commit accepts.
func (j *Journal) Limit() int { return int(j.nc.MaxPayload()) }

// Status is where a journal and its relays stand.
type Status struct {
	Decisions uint64 `json:"decisions"` // stored
	Bytes     uint64 `json:"bytes"`
	LastSeq   uint64 `json:"last_seq"` // of the stream
	// PublishedThrough is the last sequence up to which the commands of every
	// decision are published. Some behind it may be published too.
	PublishedThrough uint64 `json:"published_through"`
	// Unpublished counts decisions that no relay has confirmed, those without
	// commands included.
	Unpublished uint64 `json:"unpublished"`
	// Outstanding counts those of them that a relay holds, or that wait for
	// another try.
	Outstanding int `json:"outstanding"`
	// OldestAge is how long ago the oldest unpublished decision was stored.
	OldestAge time.Duration `json:"oldest_age"`
	// DamagedSnapshots and MissedSnapshots count, in this process, snapshots
	// that were unusable and those that could not be written.
	DamagedSnapshots uint64 `json:"damaged_snapshots"`
	MissedSnapshots  uint64 `json:"missed_snapshots"`
}

// Status returns where the journal stands now, as its leader has it. It asks for 5 s at
// most. Errors: ErrNoJournal, ErrUnavailable, or that of ctx.
func (j *Journal) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	info, err := j.consumerInfo(ctx)
	if err != nil {
		return Status{}, err
	}
	str, err := j.js.Stream(ctx, j.stream)
	if err != nil {
		return Status{}, fmt.Errorf("journal: status of %q: %w", j.stream, absent(err, j.pool))
	}
	state := str.CachedInfo().State
	s := Status{
		Decisions: state.Msgs, Bytes: state.Bytes, LastSeq: state.LastSeq,
		PublishedThrough: info.AckFloor.Stream,
		Unpublished:      info.NumPending + uint64(info.NumAckPending), Outstanding: info.NumAckPending,
		DamagedSnapshots: j.damagedSnapshots.Load(), MissedSnapshots: j.missedSnapshots.Load(),
	}
	if s.PublishedThrough < s.LastSeq {
		switch m, err := j.get(ctx, map[string]any{"seq": s.PublishedThrough + 1, "next_by_subj": j.prefix + "*"}); {
		case err == nil:
			s.OldestAge = max(time.Since(m.at), 0)
			s.Unpublished = max(s.Unpublished, 1) // the consumer may not have counted it yet
		case !errors.Is(err, errNoEntry): // none: purged
			return Status{}, fmt.Errorf("journal: status of %q: %w", j.stream, err)
		}
	}
	return s, nil
}

// askTime bounds a question to the servers: one that was asked of a server that
// died is never answered.
const askTime = 5 * time.Second

func (j *Journal) consumerInfo(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cons, err := j.js.Consumer(ctx, j.stream, consumer)
	if err != nil {
		return nil, fmt.Errorf("journal: relay of %q: %w", j.stream, absent(err, j.pool))
	}
	return cons.CachedInfo(), nil
}

func (j *Journal) remembered(token command.Token) (head, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	h, ok := j.heads[token]
	return h, ok
}

func (j *Journal) remember(token command.Token, h head) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.heads[token]; !ok && len(j.heads) >= maxHeads {
		for some := range j.heads { // any will do
			delete(j.heads, some)
			break
		}
	}
	j.heads[token] = h
}

func (j *Journal) forget(token command.Token) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.heads, token)
}
