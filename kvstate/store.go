package kvstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Errors of the store. Test with errors.Is.
var (
	// ErrStale means that the compare-and-swap lost: the entry has another
	// revision than the one expected, so somebody else has written.
	ErrStale = errors.New("written by someone else")
	// ErrIndeterminate means that nobody knows whether a write happened: read
	// the entry again before drawing a conclusion.
	ErrIndeterminate = pipeline.ErrIndeterminate
	// ErrTooLarge means that an entry does not fit into one server message.
	ErrTooLarge = errors.New("record too large")
	// ErrNoBucket means that the pool's bucket does not exist.
	ErrNoBucket = errors.New("no such bucket")
	// ErrForeign means that something else made the bucket of that name.
	ErrForeign = errors.New("it is there already, and not of a pool; choose another name for the pool, or remove it")
	// ErrDenied means that the server refused a subject to this user.
	ErrDenied = pipeline.ErrDenied
	// ErrUnavailable means that the server has no JetStream to offer just now; nothing was done.
	ErrUnavailable = pipeline.ErrNoResponders
)

// Entry is what the bucket holds under a key at one revision.
type Entry struct {
	Key command.Token
	// Revision is 0 if the key was never written. It is the number to expect
	// in the next write even where Record is nil: a delete marker counts.
	Revision uint64
	// Record is nil if there is none, or if Err is set.
	Record *Record
	// Raw is what is stored, also where it does not decode.
	Raw []byte
	// Err says why Raw is no record. It wraps command.ErrMalformed.
	Err error
	// Label is the state that the entry's header names; it is there also where
	// the record does not decode. Empty if the entry has no such header.
	Label State
	// At is when the server stored this revision; zero if it was never written.
	At time.Time
}

// Store is the pool's bucket. It is safe for concurrent use.
type Store struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	pipe   *pipeline.Pipe
	group  *pipeline.Group // nil: every write goes by itself
	stream string          // KV_<pool>
	prefix string          // $KV.<pool>.
	keep   string          // retention of final records as the server reads it
	// retention is the same as a duration; 0 means for ever.
	retention time.Duration
}

// Config of a pool's bucket.
type Config struct {
	Pool string
	// Replicas, 1 to 5. 0 leaves those of a bucket that exists; a new one gets 1.
	Replicas  int
	Retention time.Duration // of final records; default 7 days
	// FirstRevision is where a new bucket begins to count; 0 for 1. One that
	// exists goes on as it is.
	FirstRevision uint64
}

// History is how many revisions of an entry the bucket keeps, so that the
// checkpoint before a damaged one is still there.
const History = 2

// description marks a bucket as one of ours.
const description = "Tallyman: one record per command"

// Create makes the pool's bucket or brings it up to cfg. Safe to repeat. A
// bucket that something else made is left as it is, with ErrForeign: to be
// brought up to cfg would make its entries last for ever.
//
// It is a key-value bucket for every client, but made as the stream that it
// is: the client library ties expiry per key to markers for expired keys, and
// with those the server raises every shorter expiry to that of the marker.
func Create(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	name, replicas, first, batches := "KV_"+cfg.Pool, cfg.Replicas, cfg.FirstRevision, false
	str, err := js.Stream(ctx, name)
	switch {
	case err == nil:
		have := str.CachedInfo().Config
		replicas, first, batches = cmp.Or(replicas, have.Replicas), have.FirstSeq, have.AllowAtomicPublish
		err = ours(ctx, str, cfg.Pool)
	case errors.Is(err, jetstream.ErrStreamNotFound):
		err = nil
	}
	if err != nil {
		return fmt.Errorf("kvstate: create bucket %q: %w", cfg.Pool, pipeline.Away(err))
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:               name,
		Description:        description,
		Subjects:           []string{"$KV." + cfg.Pool + ".>"},
		Storage:            jetstream.FileStorage,
		Replicas:           max(replicas, 1),
		MaxMsgsPerSubject:  History,
		Discard:            jetstream.DiscardNew,
		Duplicates:         2 * time.Minute,
		DenyDelete:         true,
		AllowRollup:        true,
		AllowDirect:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: batches, // see AllowBatches
		FirstSeq:           first,
	})
	if err != nil {
		return fmt.Errorf("kvstate: create bucket %q: %w", cfg.Pool, pipeline.Away(err))
	}
	return nil
}

// ours returns nil if the bucket has our description, which other tools can
// change, or the settings of a pool.
func ours(ctx context.Context, str jetstream.Stream, pool string) error {
	if str.CachedInfo().Config.Description == description {
		return nil
	}
	_, err := str.GetLastMsgForSubject(ctx, "$KV."+pool+"."+string(KeySettings))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return ErrForeign
	}
	return err
}

// Open returns the pool's bucket. ErrNoBucket means that it does not exist.
func Open(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, pipe *pipeline.Pipe, cfg Config) (*Store, error) {
	_, err := js.KeyValue(ctx, cfg.Pool)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil, fmt.Errorf("kvstate: open bucket %q: %w", cfg.Pool, ErrNoBucket)
	}
	if err != nil {
		return nil, fmt.Errorf("kvstate: open bucket %q: %w", cfg.Pool, pipeline.Away(err))
	}
	return &Store{
		nc: nc, js: js, pipe: pipe,
		stream: "KV_" + cfg.Pool, prefix: "$KV." + cfg.Pool + ".",
		keep: ttl(cfg.Retention), retention: cfg.Retention,
	}, nil
}

// StreamName returns the name of the stream that is a pool's bucket.
func StreamName(pool string) string { return "KV_" + pool }

// Subject returns the subject under which the entry of key is stored.
func (s *Store) Subject(key command.Token) string { return s.prefix + string(key) }

// Keep sets the retention of final records, which is known only once the
// pool's settings have been read. Call it before any write.
func (s *Store) Keep(retention time.Duration) { s.keep, s.retention = ttl(retention), retention }

// Retention is how long final records are kept; 0 means for ever.
func (s *Store) Retention() time.Duration { return s.retention }

// Bucket returns the name of the bucket, as the nats CLI takes it.
func (s *Store) Bucket() string { return strings.TrimPrefix(s.stream, "KV_") }

// ttl spells d for the Nats-TTL header: whole seconds, at least one; empty for ever.
func ttl(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(max(int64(d/time.Second), 1), 10)
}

// Write stores r under key if the entry still has revision r.Revision, and
// calls done with the new revision. It does not wait: callers bound what is
// under way. Done runs on the pipeline's goroutine and must not block. If
// Write returns an error nothing was sent and done is not called.
//
// Final records get the retention, and remove the revisions below them.
func (s *Store) Write(key command.Token, r *Record, done func(revision uint64, err error)) error {
	m, err := s.message(key, r)
	if err != nil {
		return err
	}
	return s.send(m, done)
}

// WriteWait is Write that waits for the answer and returns the new revision.
// ErrIndeterminate comes back as it is; see Resolve.
func (s *Store) WriteWait(ctx context.Context, key command.Token, r *Record) (uint64, error) {
	m, err := s.message(key, r)
	if err != nil {
		return 0, err
	}
	return s.sendWait(ctx, m)
}

// message is the stored form of a record.
func (s *Store) message(key command.Token, r *Record) (*pipeline.Message, error) {
	m := pipeline.NewMessage(s.Subject(key), nil)
	body, err := appendRecord(m.Room(), r)
	if err != nil {
		m.Recycle()
		return nil, err
	}
	m.Fill(body)
	m.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(r.Revision, 10))
	m.Set(command.HeaderState, string(r.State))
	m.Set(command.HeaderKind, r.Kind)
	m.Set(command.HeaderAttempt, strconv.Itoa(r.Attempt))
	m.Set(command.HeaderOwner, r.Owner)
	if r.Offset > 0 {
		m.Set(command.HeaderOffset, strconv.FormatUint(r.Offset, 10))
	}
	if r.Reason != "" {
		m.Set(command.HeaderReason, string(r.Reason))
	}
	if r.State.Final() {
		if s.keep != "" {
			m.Set(jetstream.MsgTTLHeader, s.keep)
		}
		if r.Revision > 0 {
			m.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		}
	}
	return m, nil
}

// Put stores an entry that is no record, whatever was there before. With
// expire it is kept only as long as a receipt. It does not wait; done may not block.
func (s *Store) Put(key command.Token, value []byte, expire bool, done func(revision uint64, err error)) error {
	m := pipeline.NewMessage(s.Subject(key), value)
	if expire && s.keep != "" {
		m.Set(jetstream.MsgTTLHeader, s.keep)
	}
	return s.send(m, done)
}

// probeTTL is how long the trace of a probe stays, in seconds.
const probeTTL = "60"

// Probe writes a small entry that soon expires, to learn whether this user can
// write records just now.
func (s *Store) Probe(ctx context.Context, key command.Token) error {
	_, err := s.sendWait(ctx, s.probe(key))
	return err
}

func (s *Store) probe(key command.Token) *pipeline.Message {
	m := pipeline.NewMessage(s.Subject(key), []byte("ready"))
	m.Set(jetstream.MsgTTLHeader, probeTTL)
	m.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	return m
}

// PutWait stores an entry that is no record over the given revision, and waits.
func (s *Store) PutWait(ctx context.Context, key command.Token, value []byte, revision uint64) error {
	m := pipeline.NewMessage(s.Subject(key), value)
	m.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(revision, 10))
	_, err := s.sendWait(ctx, m)
	return err
}

// headerRoom is what headers and the server's own additions may take.
const headerRoom = 1024

// Limit is the largest encoded record in bytes that the server stores.
func (s *Store) Limit() int { return int(s.nc.MaxPayload()) - headerRoom }

// send sends m, which is its own from now on.
func (s *Store) send(m *pipeline.Message, done func(uint64, error)) error {
	subject := m.Subject()
	return failed(subject, s.deliver(m, func(ack pipeline.PubAck, err error) { done(ack.Sequence, failed(subject, err)) }))
}

// sendWait is send that waits for the answer.
func (s *Store) sendWait(ctx context.Context, m *pipeline.Message) (revision uint64, err error) {
	subject := m.Subject()
	ack, err := pipeline.AwaitWrite(ctx, func(done func(pipeline.PubAck, error)) error { return s.deliver(m, done) })
	return ack.Sequence, failed(subject, err)
}

func (s *Store) deliver(m *pipeline.Message, done func(pipeline.PubAck, error)) error {
	limit := s.Limit()
	if m.Headers() == 0 {
		limit = int(s.nc.MaxPayload()) // so that whatever came in one message can be put into one
	}
	if n := m.Size(); n > limit {
		m.Recycle()
		return fmt.Errorf("%w: %d bytes, the server's max_payload leaves %d", ErrTooLarge, n, limit)
	}
	return s.pipe.Deliver(m, s.group, done)
}

// failed says which write failed and what the server's code means.
func failed(subject string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("kvstate: write %s: %w", subject, classify(err))
}

// classify gives the server's codes their meaning. It is the only place that knows them.
func classify(err error) error {
	if api := (*pipeline.APIError)(nil); errors.As(err, &api) {
		switch api.Code {
		case 10071, 10164: // wrong last sequence, by subject
			return fmt.Errorf("%w: %w", ErrStale, err)
		case 10054: // message size exceeds maximum
			return fmt.Errorf("%w: %w", ErrTooLarge, err)
		case 10059: // stream not found
			return fmt.Errorf("%w: %w", ErrNoBucket, err)
		}
	}
	return err
}

// Read returns the entry of key as the stream's leader has it.
func (s *Store) Read(ctx context.Context, key command.Token) (Entry, error) {
	return s.read(ctx, key, map[string]any{"last_by_subj": s.prefix + string(key)})
}

// Oldest returns the oldest revision that the bucket still has of key's entry,
// as the stream's leader has it: the one before the newest, or the newest
// itself if there is no other.
func (s *Store) Oldest(ctx context.Context, key command.Token) (Entry, error) {
	return s.read(ctx, key, map[string]any{"seq": 1, "next_by_subj": s.prefix + string(key)})
}

func (s *Store) read(ctx context.Context, key command.Token, query map[string]any) (Entry, error) {
	m, err := s.pipe.Get(ctx, s.stream, query)
	if api := (*pipeline.APIError)(nil); errors.As(err, &api) && api.Code == 10037 { // no message found
		return Entry{Key: key}, nil
	}
	if err != nil {
		return Entry{}, fmt.Errorf("kvstate: read %s: %w", key, classify(err))
	}
	if strings.HasSuffix(string(key), "*") {
		return s.entryAt(m.Subject, m.Seq, m.At, m.Header, m.Data), nil
	}
	return entryOf(key, m.Seq, m.At, m.Header, m.Data), nil
}

// entryOf makes an entry of a stored message.
func entryOf(key command.Token, revision uint64, at time.Time, h nats.Header, data []byte) Entry {
	if deleted(h) {
		return Entry{Key: key, Revision: revision, At: at}
	}
	return NewEntry(key, revision, at, State(h.Get(command.HeaderState)), data)
}

// NewEntry makes an entry of what is stored under key at a revision since at,
// with the state that its headers name. It is for whoever gets the bytes other
// than through a Store.
func NewEntry(key command.Token, revision uint64, at time.Time, label State, data []byte) Entry {
	e := Entry{Key: key, Revision: revision, Raw: data, Label: label, At: at}
	r, err := Decode(data)
	if err != nil {
		e.Err = err
		return e
	}
	r.Revision, r.StoredAt = revision, at
	if (r.State == Claimed || r.State == Prepared) && r.Token == 0 {
		r.Token = revision // the claim's own revision is its token; it could not be written into itself
		if n := len(r.Trail); n > 0 && r.Trail[n-1].State == r.State {
			r.Trail[n-1].Token = revision // likewise, and whoever takes over copies the trail
		}
	}
	e.Record = r
	return e
}

// deleted reports whether a stored message only marks that its key was
// deleted, purged or expired.
func deleted(h nats.Header) bool {
	return h.Get("KV-Operation") != "" || h.Get(jetstream.MarkerReasonHeader) != ""
}
