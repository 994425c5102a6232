package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

const (
	// DefaultLease is how long a relay that fell silent keeps a decision.
	DefaultLease = 30 * time.Second

	// consumer is the durable consumer that all relays of a journal share.
	consumer = "relay"
)

// Config of a pool's journal.
type Config struct {
	Pool string
	// Replicas, 1 to 5. 0 leaves those of a journal that exists; a new one gets
	// as many as the pool's bucket has.
	Replicas int
	// Lease is how long a relay that fell silent keeps a decision, before
	// another one publishes its commands. Default 30 s; 0 leaves that of a
	// journal that exists. Keep it above the producer's ProducerConfig.Confirm.
	Lease time.Duration
	// MaxBytes bounds the journal. 0 leaves the bound of a journal that
	// exists, and gives a new one none; below 0 means none. A full journal
	// refuses decisions with ErrFull and never drops old ones.
	MaxBytes int64
}

// Name returns the name of the stream that holds a pool's journal.
func Name(pool string) string { return pool + "_journal" }

func subjectPrefix(pool string) string { return pool + ".journal." }

// Create makes the journal of a pool that exists, or brings it up to cfg. It
// is the operator's act and safe to repeat. While there is no answer it asks again
// until ctx ends. It fails with ErrUnavailable while there is no leader.
//
// A consumer that was deleted is made again where the relays had got to, as
// far as they have noted it (see Relay), and not at the first decision: the
// receipts that would absorb the oldest commands may have expired.
func Create(ctx context.Context, nc *nats.Conn, cfg Config) error {
	if err := command.ValidateName("pool", cfg.Pool); err != nil {
		return fmt.Errorf("journal: create: %w", err)
	}
	err := pipeline.Again(ctx, createTime, func(ctx context.Context) error { return create(ctx, nc, cfg) })
	if err != nil {
		return fmt.Errorf("journal: create %q: %w", Name(cfg.Pool), err)
	}
	return nil
}

// createTime bounds one try to make a journal.
const createTime = 10 * time.Second

func create(ctx context.Context, nc *nats.Conn, cfg Config) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket, err := js.Stream(ctx, kvstate.StreamName(cfg.Pool))
	if err != nil {
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			err = fmt.Errorf("the pool does not exist; create it first, with: tallyman init --pool %s: %w", cfg.Pool, err)
		}
		return pipeline.Away(err)
	}
	var have jetstream.StreamConfig
	switch str, err := js.Stream(ctx, Name(cfg.Pool)); {
	case err == nil:
		have = str.CachedInfo().Config
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return pipeline.Away(err)
	}
	str, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:        Name(cfg.Pool),
		Description: "Tallyman: decisions of runs, with their commands",
		Subjects:    []string{subjectPrefix(cfg.Pool) + "*"},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    cmp.Or(cfg.Replicas, have.Replicas, bucket.CachedInfo().Config.Replicas),
		MaxBytes:    cmp.Or(max(cfg.MaxBytes, -1), have.MaxBytes, -1),
		Discard:     jetstream.DiscardNew, // events stay: no new one may push out an old one
		DenyDelete:  true,                 // a decision that is taken out leaves a gap; a whole run may be purged
		AllowDirect: true,
	})
	if err != nil {
		return pipeline.Away(err)
	}
	want := jetstream.ConsumerConfig{
		Durable:       consumer,
		Description:   "Tallyman: publishes the commands of decisions; its acks mean published",
		AckPolicy:     jetstream.AckExplicitPolicy,
		MaxDeliver:    -1, // a decision is never given up
		MaxAckPending: -1, // decisions that wait for their next try count against it and must not stop others
	}
	switch cons, err := str.Consumer(ctx, consumer); {
	case err == nil:
		old := cons.CachedInfo().Config
		want.AckWait = cmp.Or(cfg.Lease, old.AckWait)
		want.DeliverPolicy, want.OptStartSeq = old.DeliverPolicy, old.OptStartSeq // cannot be changed
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		want.AckWait = cmp.Or(cfg.Lease, DefaultLease)
		m, err := storedMark(ctx, bucket, cfg.Pool)
		if err != nil {
			return err
		}
		// A stream that was made anew counts from 1; what was noted says nothing about it.
		info := str.CachedInfo()
		if m.PublishedThrough > 0 && m.PublishedThrough <= info.State.LastSeq && !another(m.PublishedOf, info.Created) {
			want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, m.PublishedThrough+1
		}
	default:
		return pipeline.Away(err)
	}
	if _, err := str.CreateOrUpdateConsumer(ctx, want); err != nil {
		return pipeline.Away(err)
	}
	return nil
}

// storedMark reads the mark where there is no Store yet.
func storedMark(ctx context.Context, bucket jetstream.Stream, pool string) (mark, error) {
	m, err := bucket.GetLastMsgForSubject(ctx, "$KV."+pool+"."+string(kvstate.KeyJournal))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return mark{}, nil
	}
	if err != nil {
		return mark{}, fmt.Errorf("read up to where commands were published: %w", pipeline.Away(err))
	}
	return parseMark(m.Data)
}

// mark is what the pool's bucket holds under kvstate.KeyJournal.
type mark struct {
	// PublishedThrough is the last sequence of the journal's stream up to which
	// all commands were published, as noted last. The consumer knows better as
	// long as it exists.
	PublishedThrough uint64 `json:"published_through"`
	// SealedThrough is the last one up to which an audit found that all
	// commands had their outcome.
	SealedThrough uint64 `json:"sealed_through"`
	// PublishedOf and SealedOf are when the stream was made that each of the two
	// counts in; zero in marks of earlier versions.
	PublishedOf time.Time `json:"published_of,omitzero"`
	SealedOf    time.Time `json:"sealed_of,omitzero"`

	revision uint64
}

// another reports whether something was noted of another stream than the one
// that was made at that time.
func another(of, created time.Time) bool { return !of.IsZero() && !of.Equal(created) }

// created is when the journal's stream was made.
func (j *Journal) created(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	str, err := j.js.Stream(ctx, j.stream)
	if err != nil {
		return time.Time{}, fmt.Errorf("journal: look at %q: %w", j.stream, absent(err, j.pool))
	}
	return str.CachedInfo().Created, nil
}

func parseMark(raw []byte) (mark, error) {
	var m mark
	if len(raw) == 0 {
		return m, nil
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return mark{}, fmt.Errorf("the entry %s is %w: %w; it says up to where commands were published", kvstate.KeyJournal, ErrDamaged, err)
	}
	return m, nil
}

func (j *Journal) readMark(ctx context.Context) (mark, error) {
	e, err := j.records.Read(ctx, kvstate.KeyJournal)
	if err != nil {
		return mark{}, fmt.Errorf("journal: %w", err)
	}
	m, err := parseMark(e.Raw)
	if err != nil {
		return mark{}, fmt.Errorf("journal: %w", err)
	}
	m.revision = e.Revision
	return m, nil
}

// advanceMark raises the mark with change, which says whether it did.
func (j *Journal) advanceMark(ctx context.Context, change func(*mark) bool) error {
	for {
		m, err := j.readMark(ctx)
		if err != nil {
			return err
		}
		if !change(&m) {
			return nil
		}
		body, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		err = j.records.PutWait(ctx, kvstate.KeyJournal, body, m.revision)
		if !errors.Is(err, kvstate.ErrStale) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("journal: %w", context.Cause(ctx))
		}
	}
}
