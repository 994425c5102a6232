package stream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Accepted is the server's word that a command is stored.
type Accepted struct {
	Sequence uint64
	// Repeated says that it was stored before, within the duplicate window;
	// Sequence is then that of the first copy.
	Repeated bool
}

// Reserve is the room in bytes that a command leaves in a server message, so
// that its record can hold it whole, with trail and reason, when it is parked.
const Reserve = 16 << 10

// Limit is the largest command in bytes, headers included, that Publish accepts.
func (s *Stream) Limit() int { return int(s.nc.MaxPayload()) - Reserve }

// Publish sends a command and calls done with the outcome. It does not wait:
// callers bound what is under way. Done runs on the pipeline's goroutine and
// must not block; it is not called if Publish returns an error, which means
// that nothing was sent.
//
// Outcomes: ErrRepeated, ErrFull, ErrTooLarge, ErrNoStream, ErrUnavailable,
// ErrDenied, or ErrIndeterminate, after which publishing again is safe.
func (s *Stream) Publish(env command.Envelope, done func(Accepted, error)) error {
	m, err := s.message(env)
	if err != nil {
		return err
	}
	return s.send(m, env.ID, done)
}

// Republish sends a command that was in the stream before, as Publish does but
// without a message id: within the duplicate window the server would take it
// for the copy that has left, and swallow it. As long as a copy is in the stream
// the server refuses it with ErrRepeated. What was once stored is not refused
// for its size.
func (s *Stream) Republish(env command.Envelope, done func(Accepted, error)) error {
	m, size, err := s.encode(env)
	if err != nil {
		return err
	}
	m.Unset(command.HeaderMsgID)
	if size > int(s.nc.MaxPayload()) {
		// It came without them, or it would not have fitted; they only repeat
		// what subject and payload say.
		m.Unset(command.HeaderID)
		m.Unset(command.HeaderDigest)
	}
	return s.send(m, env.ID, done)
}

// Check returns the error, ErrTooLarge among them, with which Publish would
// refuse the command without asking the server.
func (s *Stream) Check(env command.Envelope) error {
	m, err := s.message(env)
	if err == nil {
		m.Recycle()
	}
	return err
}

func (s *Stream) message(env command.Envelope) (*pipeline.Message, error) {
	m, size, err := s.encode(env)
	if err == nil && size > s.Limit() {
		m.Recycle()
		return nil, fmt.Errorf("stream: publish %q: %w: %d bytes with headers, max_payload of the server leaves %d; store the body elsewhere and submit a reference", env.ID, ErrTooLarge, size, s.Limit())
	}
	return m, err
}

// encode makes a message of a command, and tells how many bytes it has at most, headers included.
func (s *Stream) encode(env command.Envelope) (m *pipeline.Message, size int, err error) {
	if strings.ContainsAny(env.ContentType, "\r\n") {
		return nil, 0, fmt.Errorf("stream: publish %q: the content type %q contains a line break", env.ID, env.ContentType)
	}
	m = pipeline.NewMessage(s.Subject(env.Queue, env.Kind, env.Token), env.Payload)
	// Spaces around a header's value get lost on the way, so the id itself would
	// make one message id of "a" and " a". Its token cannot.
	m.Set(command.HeaderMsgID, string(env.Token))
	m.Set(command.HeaderDigest, string(env.Digest))
	if env.ID != string(env.Token) { // else subject and message id spell it as it is
		m.Set(command.HeaderID, env.ID)
	}
	size = 2*len(env.ID) + len(env.Digest) + len(env.ContentType) + len(env.Payload) + 128
	if env.ContentType != "" {
		m.Set(command.HeaderContentType, env.ContentType)
	}
	if !env.NotAfter.IsZero() {
		m.Set(command.HeaderNotAfter, env.NotAfter.UTC().Format(time.RFC3339Nano))
		size += 64
	}
	return m, size, nil
}

// send sends m, which is its own from now on.
func (s *Stream) send(m *pipeline.Message, id string, done func(Accepted, error)) error {
	subject := m.Subject()
	if s.group != nil {
		m.Keep() // it may wait, and the caller may give up before
	}
	err := s.pipe.Deliver(m, s.group, func(ack pipeline.PubAck, err error) { done(accepted(subject, ack, err)) })
	if err != nil {
		return fmt.Errorf("stream: publish %q: %w", id, err)
	}
	return nil
}

// accepted is what the server's answer says.
func accepted(subject string, ack pipeline.PubAck, err error) (Accepted, error) {
	if err != nil {
		return Accepted{}, fmt.Errorf("stream: publish %s: %w", subject, classify(err))
	}
	return Accepted{Sequence: ack.Sequence, Repeated: ack.Duplicate}, nil
}

// classify gives the server's codes their meaning. It is the only place that knows them.
func classify(err error) error {
	api := (*pipeline.APIError)(nil)
	if !errors.As(err, &api) {
		return err
	}
	switch api.Code {
	case 10077: // the store refused: a copy of the subject, or a limit of the stream
		if strings.Contains(api.Description, "per subject") {
			return fmt.Errorf("%w: %w", ErrRepeated, err)
		}
		return fmt.Errorf("%w: %w", ErrFull, err)
	case 10047, 10023: // insufficient storage or resources
		return fmt.Errorf("%w: %w", ErrFull, err)
	case 10158: // a copy with the same id is being replicated: ask again
		return fmt.Errorf("%w: %w", ErrIndeterminate, err)
	case 10054: // message size exceeds maximum
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case 10109: // the stream is sealed
		return fmt.Errorf("%w: %w", ErrSealed, err)
	case 10059: // stream not found
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	case 10037: // no message found
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// Stored is a command as it lies in the stream.
type Stored struct {
	Seq     uint64
	Subject string
	Queue   string
	Kind    string
	Token   command.Token
	Header  nats.Header
	Payload []byte
	At      time.Time
}

// Find returns the newest stored command whose id has this token, whatever its
// queue and kind, as the stream's leader has it. ErrNotFound means none.
func (s *Stream) Find(ctx context.Context, token command.Token) (Stored, error) {
	return s.get(ctx, map[string]any{"last_by_subj": s.prefix + "*.*." + string(token)})
}

// Occupant returns the stored command that has the subject of env, and for as
// long as it is there keeps env out. ErrNotFound means none.
func (s *Stream) Occupant(ctx context.Context, env command.Envelope) (Stored, error) {
	return s.get(ctx, map[string]any{"last_by_subj": s.Subject(env.Queue, env.Kind, env.Token)})
}

// Get returns the stored command with sequence seq as the stream's leader has
// it. ErrNotFound means that it is not, or no longer, there.
func (s *Stream) Get(ctx context.Context, seq uint64) (Stored, error) {
	return s.get(ctx, map[string]any{"seq": seq})
}

func (s *Stream) get(ctx context.Context, query map[string]any) (Stored, error) {
	m, err := s.pipe.Get(ctx, s.name, query)
	if err != nil {
		return Stored{}, fmt.Errorf("stream: get: %w", classify(err))
	}
	out := Stored{Seq: m.Seq, Subject: m.Subject, Header: m.Header, Payload: m.Data, At: m.At}
	out.Queue, out.Kind, out.Token = s.parse(out.Subject)
	return out, nil
}

// Names takes the subject of a stored command apart, as Sequences gives it.
func (s *Stream) Names(subject string) (queue, kind string, token command.Token) {
	return s.parse(subject)
}

// parse takes a subject of this stream apart.
func (s *Stream) parse(subject string) (queue, kind string, token command.Token) {
	return parse(s.prefix, subject)
}

func parse(prefix, subject string) (queue, kind string, token command.Token) {
	rest, ok := strings.CutPrefix(subject, prefix)
	if !ok {
		return "", "", ""
	}
	queue, rest, _ = strings.Cut(rest, ".")
	kind, rest, _ = strings.Cut(rest, ".")
	return queue, kind, command.Token(rest)
}
