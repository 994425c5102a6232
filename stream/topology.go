package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// DuplicateWindow is how long the server remembers a Nats-Msg-Id. Safety does
// not rest on it; it only refuses most repeats earlier.
const DuplicateWindow = 2 * time.Minute

// Errors of the command stream. Test with errors.Is.
var (
	// ErrRepeated means that a command with this subject is in the stream already.
	ErrRepeated = errors.New("already in the stream")
	// ErrFull means that the stream has reached its limit of messages or bytes.
	ErrFull = errors.New("stream is full")
	// ErrTooLarge means that a command does not fit into one server message,
	// with room left to park it.
	ErrTooLarge = errors.New("command too large")
	// ErrNoStream means that the pool's command stream does not exist.
	ErrNoStream = errors.New("no such stream")
	// ErrForeign means that something else made the stream of that name.
	ErrForeign = errors.New("it is there already, and not of this pool; choose another name for the pool, or remove it")
	// ErrSealed means that the stream was sealed by hand, so that it takes nothing any more.
	ErrSealed = errors.New("stream is sealed")
	// ErrNoQueue means that the queue has no consumer.
	ErrNoQueue = errors.New("no such queue")
	// ErrPassed means that a queue was to stand until a moment that has passed by
	// the clock of the server.
	ErrPassed = errors.New("that moment has passed by the clock of the server")
	// ErrNotFound means that the stream does not hold the message.
	ErrNotFound = errors.New("no such message")
	// ErrIndeterminate means that nobody knows whether the server acted.
	ErrIndeterminate = pipeline.ErrIndeterminate
	// ErrUnavailable means that the server has no JetStream to offer just now; nothing was done.
	ErrUnavailable = pipeline.ErrNoResponders
	// ErrDenied means that the server refused a subject to this user.
	ErrDenied = pipeline.ErrDenied
)

// Config of a pool's command stream.
type Config struct {
	Pool string
	// Replicas, 1 to 5. 0 leaves those of a stream that exists; a new one gets 1.
	Replicas int
	Queues   []string // consumers to create; default "default"
	// Lease is the ack wait of every consumer: how long a worker that fell
	// silent keeps its deliveries. Default 30 s.
	Lease time.Duration
	// MaxBytes and MaxMsgs limit the stream. 0 leaves the limits of a stream
	// that exists; a new one gets none. Below 0 means no limit. A publish
	// beyond them is refused, never makes room by dropping an older command.
	MaxBytes int64
	MaxMsgs  int64
	// Sweep keeps acked commands in the stream until they are swept out (see
	// Stream.Purge); without it the ack takes them out. A stream that exists
	// cannot be changed: ErrRetention.
	Sweep bool
	// Batches lets the stream take atomic batches, which Gather needs.
	Batches bool
}

// description marks a stream as one of ours.
const description = "Tallyman: commands that await their receipt"

// allCommands follows a pool's prefix: queue, kind and token.
const allCommands = "*.*.*"

// Name returns the stream's name for a pool.
func Name(pool string) string { return pool + "_commands" }

// subjectPrefix begins every subject of a pool's commands.
func subjectPrefix(pool string) string { return pool + ".commands." }

// Subject returns the subject of a command.
func (s *Stream) Subject(queue, kind string, token command.Token) string {
	return s.prefix + queue + "." + kind + "." + string(token)
}

// Subject returns the subject of a command of a pool.
func Subject(pool, queue, kind string, token command.Token) string {
	return subjectPrefix(pool) + queue + "." + kind + "." + string(token)
}

// Create makes the stream and its consumers or brings them up to cfg. It never
// removes a queue, nor resumes one that is paused. Safe to repeat. A stream that
// something else made, with another description and other subjects, is left as it is,
// with ErrForeign.
func Create(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	have, err := existing(ctx, js, Name(cfg.Pool))
	if err != nil {
		return fmt.Errorf("stream: create %q: %w", Name(cfg.Pool), err)
	}
	subjects := []string{subjectPrefix(cfg.Pool) + allCommands}
	if have.Name != "" && have.Description != description && !slices.Equal(have.Subjects, subjects) {
		return fmt.Errorf("stream: create %q: %w", Name(cfg.Pool), ErrForeign)
	}
	if have.Name != "" && sweeps(have) != cfg.Sweep {
		return fmt.Errorf("stream: create %q: %w", Name(cfg.Pool), ErrRetention)
	}
	str, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:                 Name(cfg.Pool),
		Description:          description,
		Subjects:             subjects,
		Retention:            retention(cfg.Sweep),
		Storage:              jetstream.FileStorage,
		Replicas:             cmp.Or(cfg.Replicas, have.Replicas, 1),
		Duplicates:           DuplicateWindow,
		MaxMsgsPerSubject:    1,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxBytes:             cmp.Or(max(cfg.MaxBytes, -1), have.MaxBytes, -1),
		MaxMsgs:              cmp.Or(max(cfg.MaxMsgs, -1), have.MaxMsgs, -1),
		AllowDirect:          true,
		AllowAtomicPublish:   cfg.Batches,
		// What was switched on by hand, and the server does not switch off again.
		DenyDelete: have.DenyDelete, DenyPurge: have.DenyPurge, AllowMsgTTL: have.AllowMsgTTL,
	})
	if err != nil {
		return fmt.Errorf("stream: create %q: %w", Name(cfg.Pool), pipeline.Away(err))
	}
	queues := cfg.Queues
	if len(queues) == 0 {
		queues = []string{command.DefaultQueue}
	}
	for _, q := range queues {
		if err := command.ValidateName("queue", q); err != nil {
			return fmt.Errorf("stream: create queue: %w", err)
		}
		was, err := consumer(ctx, str, q)
		if err != nil {
			return fmt.Errorf("stream: create queue %q: %w", q, pipeline.Away(err))
		}
		_, err = str.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable:       q,
			Description:   "Tallyman: queue " + q,
			FilterSubject: subjectPrefix(cfg.Pool) + q + ".>",
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       cfg.Lease,
			MaxDeliver:    -1, // attempts are bounded by the worker: past this limit a message would stay, invisible
			MaxAckPending: -1, // commands that wait for their retry count against it
			PauseUntil:    was.PauseUntil,
			Metadata:      was.Metadata,
		})
		if api := (*jetstream.APIError)(nil); was.Durable != "" && errors.As(err, &api) && api.ErrorCode == codeCannotChange {
			return fmt.Errorf("stream: create queue %q: %w; it was made with another tool: stop the workers, delete it with: nats consumer rm %s %[1]s, and repeat this; everything is delivered again then, and what is settled is absorbed", q, err, Name(cfg.Pool))
		}
		if err != nil {
			return fmt.Errorf("stream: create queue %q: %w", q, pipeline.Away(err))
		}
	}
	return nil
}

// codeCannotChange is the server's refusal to make something else of a consumer.
const codeCannotChange = 10012

// existing returns the configuration of a stream, or an empty one if there is none.
func existing(ctx context.Context, js jetstream.JetStream, name string) (jetstream.StreamConfig, error) {
	str, err := js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return jetstream.StreamConfig{}, nil
	case err != nil:
		return jetstream.StreamConfig{}, pipeline.Away(err)
	}
	return str.CachedInfo().Config, nil
}

// consumer returns the configuration of a consumer, or an empty one if there is none.
func consumer(ctx context.Context, str jetstream.Stream, name string) (jetstream.ConsumerConfig, error) {
	cons, err := str.Consumer(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return jetstream.ConsumerConfig{}, nil
	case err != nil:
		return jetstream.ConsumerConfig{}, err
	}
	return cons.CachedInfo().Config, nil
}

// Stream is a pool's command stream. It is safe for concurrent use.
type Stream struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	pipe   *pipeline.Pipe
	group  *pipeline.Group // nil: every command goes by itself
	name   string
	prefix string
	sweeps bool
}

// Open returns the pool's stream. ErrNoStream means that it does not exist.
func Open(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, pipe *pipeline.Pipe, pool string) (*Stream, error) {
	s := &Stream{nc: nc, js: js, pipe: pipe, name: Name(pool), prefix: subjectPrefix(pool)}
	str, err := s.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream: open %q: %w", s.name, err)
	}
	s.sweeps = sweeps(str.CachedInfo().Config)
	return s, nil
}

// look asks for the stream as it is now.
func (s *Stream) look(ctx context.Context) (jetstream.Stream, error) {
	str, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, s.name) })
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = ErrNoStream
	}
	return str, pipeline.Away(err)
}

// Queue is the state of one queue.
type Queue struct {
	Name        string
	Lease       time.Duration
	Pending     uint64 // not yet delivered
	Outstanding int    // delivered and not settled: running, or waiting for a retry
	Redelivered int
	Delivered   uint64 // the newest sequence that was ever delivered; those before it were, too
	Deliveries  uint64 // made so far, repeated ones too
	Waiting     int    // pulls of workers that wait for commands
	Paused      bool
	PausedUntil time.Time // zero if it is not paused
	// Floor is the sequence up to which every command of the queue is acked, as
	// far as the server knows.
	Floor uint64
	// Whole says that the consumer is as Create makes it in what Floor rests on.
	Whole bool
	// Over is the sequence up to which the queue delivers nothing any more: what is there has been acked,
	// or given up, as at a max deliver that was taken back since. 0 if that is not known.
	Over uint64
	// Altered says in what, and why that matters, the consumer is not as Create makes it: it
	// was changed, or made, with another tool.
	Altered []string
	// InLine says that there may be commands that were given back, or lost by
	// their holder, and wait for a pull: some are outstanding, and no pull waits.
	InLine bool
}

// Queues lists the pool's queues.
func (s *Stream) Queues(ctx context.Context) ([]Queue, error) {
	queues, err := pipeline.Question(ctx, func(ctx context.Context) (queues []Queue, err error) {
		str, err := s.js.Stream(ctx, s.name)
		if err != nil {
			return nil, err
		}
		list := str.ListConsumers(ctx)
		for info := range list.Info() {
			if info.Config.Durable == "" {
				continue
			}
			queues = append(queues, s.queueOf(info))
		}
		return queues, list.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("stream: list queues: %w", err)
	}
	return queues, nil
}

// Queue returns the state of one queue. ErrNoQueue means that it does not exist,
// ErrNoStream that its stream does not either.
func (s *Stream) Queue(ctx context.Context, name string) (Queue, error) {
	cons, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Consumer, error) { return s.js.Consumer(ctx, s.name, name) })
	if err != nil {
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			err = ErrNoQueue
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			err = ErrNoStream
		}
		return Queue{}, fmt.Errorf("stream: queue %q of %q: %w", name, s.name, pipeline.Away(err))
	}
	return s.queueOf(cons.CachedInfo()), nil
}

func (s *Stream) queueOf(info *jetstream.ConsumerInfo) Queue {
	q := Queue{
		Name: info.Name, Lease: info.Config.AckWait, Pending: info.NumPending,
		Outstanding: info.NumAckPending, Redelivered: info.NumRedelivered, Delivered: info.Delivered.Stream, Deliveries: info.Delivered.Consumer,
		Waiting: info.NumWaiting, Paused: info.Paused,
		Floor: info.AckFloor.Stream, Whole: s.whole(info.Config), Altered: s.alteredQueue(info.Config),
		InLine: info.NumAckPending > 0 && (info.NumWaiting == 0 || info.Paused),
	}
	if q.Whole {
		q.Over = q.Floor
	}
	if q.Whole && q.Outstanding == 0 { // the floor does not pass over what was given up before another ack
		q.Over = q.Delivered
	}
	if until := info.Config.PauseUntil; info.Paused && until != nil {
		q.PausedUntil = *until
	}
	return q
}

// State is what the stream holds.
type State struct {
	Replicas int
	Messages uint64
	Bytes    uint64
	FirstSeq uint64
	LastSeq  uint64
	MaxBytes int64 // that it may hold; -1 for no limit
	MaxMsgs  int64
	// Created is when the stream was made, by hand or from a backup. It stays the
	// same over restarts, moves of the leader and changes of settings.
	Created time.Time
	// LastAt is when LastSeq was handed out; zero if nothing ever was.
	LastAt time.Time
}

// State returns what the stream holds now, as its leader has it. ErrNoStream means
// that it does not exist.
func (s *Stream) State(ctx context.Context) (State, error) {
	str, err := s.look(ctx)
	if err != nil {
		return State{}, fmt.Errorf("stream: state: %w", err)
	}
	info := str.CachedInfo()
	st := info.State
	return State{
		Replicas: info.Config.Replicas, Messages: st.Msgs, Bytes: st.Bytes, FirstSeq: st.FirstSeq, LastSeq: st.LastSeq,
		MaxBytes: info.Config.MaxBytes, MaxMsgs: info.Config.MaxMsgs,
		Created: info.Created, LastAt: st.LastTime,
	}, nil
}

// Delete deletes a pool's command stream with its consumers and whatever it
// holds. One that does not exist is no error.
func Delete(ctx context.Context, js jetstream.JetStream, pool string) error {
	err := pipeline.Again(ctx, pipeline.DefaultTimeout, func(ctx context.Context) error { return js.DeleteStream(ctx, Name(pool)) })
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("stream: delete %q: %w", Name(pool), pipeline.Away(err))
	}
	return nil
}

// CountByQueue counts the stored commands by queue.
func (s *Stream) CountByQueue(ctx context.Context) (map[string]uint64, error) {
	info, err := pipeline.Question(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		str, err := s.js.Stream(ctx, s.name)
		if err != nil {
			return nil, err
		}
		return str.Info(ctx, jetstream.WithSubjectFilter(s.prefix+">"))
	})
	if err != nil {
		return nil, fmt.Errorf("stream: count by queue: %w", err)
	}
	counts := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		queue, _, _ := strings.Cut(strings.TrimPrefix(subject, s.prefix), ".")
		counts[queue] += n
	}
	return counts, nil
}
