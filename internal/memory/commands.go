package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/stream"
)

// Commands is the command stream as one handle reaches it. It stands in for a
// [stream.Stream], whose methods say what these do.
type Commands struct{ h *Handle }

// Commands returns the command stream as this handle reaches it.
func (h *Handle) Commands() *Commands { return &Commands{h} }

// Limit is the largest command in bytes, headers included.
func (c *Commands) Limit() int { return c.h.s.cfg.MaxPayload - stream.Reserve }

// Publish sends a command.
func (c *Commands) Publish(env command.Envelope, done func(stream.Accepted, error)) error {
	return c.publish(env, string(env.Token), done)
}

// Republish sends a command that was in the stream before.
func (c *Commands) Republish(env command.Envelope, done func(stream.Accepted, error)) error {
	return c.publish(env, "", done)
}

func (c *Commands) publish(env command.Envelope, msgID string, done func(stream.Accepted, error)) error {
	h := nats.Header{command.HeaderDigest: {string(env.Digest)}}
	if env.ID != string(env.Token) {
		h[command.HeaderID] = []string{env.ID}
	}
	if msgID != "" {
		h[command.HeaderMsgID] = []string{msgID}
	}
	if env.ContentType != "" {
		h[command.HeaderContentType] = []string{env.ContentType}
	}
	if !env.NotAfter.IsZero() {
		h[command.HeaderNotAfter] = []string{env.NotAfter.UTC().Format(time.RFC3339Nano)}
	}
	if len(env.Payload) > c.Limit() {
		return fmt.Errorf("stream: publish %q: %w: %d bytes", env.ID, stream.ErrTooLarge, len(env.Payload))
	}
	return c.Send(env.Queue, env.Kind, env.Token, h, env.Payload, done)
}

// Send publishes what any client of the server could, with headers of its own.
func (c *Commands) Send(queue, kind string, token command.Token, h nats.Header, payload []byte, done func(stream.Accepted, error)) error {
	m := message{
		subject: stream.Subject(c.h.s.cfg.Pool, queue, kind, token), queue: queue, kind: kind, token: token,
		header: h, payload: payload,
	}
	return c.h.ask(OpPublish, func(Fate) func() {
		ok, err := c.h.s.publish(c.h.name, m, h.Get(command.HeaderMsgID))
		return func() { done(ok, err) }
	}, func(err error) { done(stream.Accepted{}, fmt.Errorf("stream: publish %s: %w", m.subject, err)) })
}

// Find returns the newest stored command whose id has this token.
func (c *Commands) Find(ctx context.Context, token command.Token) (stream.Stored, error) {
	return c.get(ctx, func(m *message) bool { return m.token == token })
}

// Occupant returns the stored command that has the subject of env.
func (c *Commands) Occupant(ctx context.Context, env command.Envelope) (stream.Stored, error) {
	subject := stream.Subject(c.h.s.cfg.Pool, env.Queue, env.Kind, env.Token)
	return c.get(ctx, func(m *message) bool { return m.subject == subject })
}

// Remove takes the command with sequence seq out of the stream without being its holder.
func (c *Commands) Remove(ctx context.Context, seq uint64) error {
	_, err := pipeline.Await(ctx, func(done func(struct{}, error)) error {
		return c.h.ask(OpAnswer, func(Fate) func() {
			c.h.s.remove(c.h.name, seq)
			return func() { done(struct{}{}, nil) }
		}, func(err error) { done(struct{}{}, err) })
	})
	if err != nil {
		return fmt.Errorf("stream: remove sequence %d: %w", seq, err)
	}
	return nil
}

// errNoPause says that queues of the double cannot be paused.
var errNoPause = errors.New("memory: queues cannot be paused here")

// Pause is not played.
func (c *Commands) Pause(context.Context, string, time.Time) error { return errNoPause }

// Resume is not played.
func (c *Commands) Resume(context.Context, string) error { return errNoPause }

// Get returns the stored command with sequence seq.
func (c *Commands) Get(ctx context.Context, seq uint64) (stream.Stored, error) {
	return c.get(ctx, func(m *message) bool { return m.seq == seq })
}

func (c *Commands) get(ctx context.Context, match func(*message) bool) (stream.Stored, error) {
	return pipeline.Await(ctx, func(done func(stream.Stored, error)) error {
		return c.h.ask(OpRead, func(Fate) func() {
			stored, err := c.h.s.find(match)
			return func() { done(stored, err) }
		}, func(err error) { done(stream.Stored{}, fmt.Errorf("stream: get: %w", err)) })
	})
}

// Queue returns the name and the lease of a queue.
func (c *Commands) Queue(ctx context.Context, name string) (stream.Queue, error) {
	return pipeline.Await(ctx, func(done func(stream.Queue, error)) error {
		return c.h.ask(OpQueue, func(Fate) func() {
			if c.h.s.stream.queues[name] == nil { // never changes
				return func() { done(stream.Queue{}, fmt.Errorf("stream: queue %q: %w", name, stream.ErrNoQueue)) }
			}
			return func() { done(stream.Queue{Name: name, Lease: c.h.s.cfg.Lease}, nil) }
		}, func(err error) { done(stream.Queue{}, err) })
	})
}

// Say sends an ack or a nak; with it and Ask, the handle is the Line of its deliveries.
func (h *Handle) Say(reply string, body []byte) error {
	if strings.HasPrefix(string(body), "-NAK") {
		h.entitled("a nak", sequence(reply))
	}
	fate := h.faults.fate(OpAnswer)
	if fate.Lost {
		return nil
	}
	return h.send(fate.Delay, func() { h.s.answer(h.name, reply, body) })
}

// Ask sends a heartbeat and calls done once it is confirmed, which it is
// whatever has become of the delivery.
func (h *Handle) Ask(reply string, body []byte, done func(error)) error {
	seq, start := sequence(reply), time.Now()
	h.entitled("a heartbeat", seq)
	return h.ask(OpExtend, func(Fate) func() {
		h.s.answer(h.name, reply, body)
		return func() {
			h.lease(seq, start, false)
			done(nil)
		}
	}, done)
}
