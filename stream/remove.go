package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Remove takes the command with sequence seq out of the stream, as an ack does,
// but without being its holder. A record must account for the sequence before,
// or the command is lost. Removing what is not there does nothing. ErrDenied
// means that this user may not; a worker's ack takes the command out as well.
func (s *Stream) Remove(ctx context.Context, seq uint64) error {
	m, err := s.removal(seq)
	if err != nil {
		return err
	}
	reply, err := s.change(ctx, m)
	if err != nil {
		return fmt.Errorf("stream: remove sequence %d: %w", seq, err)
	}
	var got struct {
		Error   *pipeline.APIError `json:"error"`
		Success bool               `json:"success"`
	}
	if err := json.Unmarshal(reply.Data, &got); err != nil {
		return fmt.Errorf("stream: remove sequence %d: %w: %w", seq, ErrIndeterminate, err)
	}
	if got.Success {
		return nil
	}
	// The server has several answers for a sequence that is not there.
	if _, err := s.Get(ctx, seq); errors.Is(err, ErrNotFound) {
		return nil
	}
	if got.Error != nil {
		return fmt.Errorf("stream: remove sequence %d: %w", seq, classify(got.Error))
	}
	return fmt.Errorf("stream: remove sequence %d: the server did not", seq)
}

// change sends a request that changes something, and waits for the answer.
func (s *Stream) change(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return pipeline.AwaitWrite(ctx, func(done func(*nats.Msg, error)) error { return s.pipe.Send(m, done) })
}

// RemoveLater is Remove that does not wait, nor tells what came of it.
func (s *Stream) RemoveLater(seq uint64) error {
	m, err := s.removal(seq)
	if err != nil {
		return err
	}
	if err := s.pipe.Send(m, func(*nats.Msg, error) {}); err != nil {
		return fmt.Errorf("stream: remove sequence %d: %w", seq, err)
	}
	return nil
}

func (s *Stream) removal(seq uint64) (*nats.Msg, error) {
	// The bytes are not worth overwriting: those of acked commands stay until
	// their block goes, too.
	body, err := json.Marshal(map[string]any{"seq": seq, "no_erase": true})
	if err != nil {
		return nil, fmt.Errorf("stream: remove sequence %d: %w", seq, err)
	}
	return &nats.Msg{Subject: "$JS.API.STREAM.MSG.DELETE." + s.name, Data: body}, nil
}
