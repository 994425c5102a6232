package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Pause stops the delivery of a queue's commands until the given moment.
// Commands that were delivered stay with their workers, whose heartbeats keep
// their leases; what a worker loses or gives back comes again after the pause.
// Pausing a queue that is paused sets the moment anew. ErrPassed means that it is
// not paused, or not any more: the server's clock decides.
func (s *Stream) Pause(ctx context.Context, queue string, until time.Time) error {
	ctx, stop := s.pipe.UntilDenied(ctx)
	defer stop()
	got, err := pipeline.Question(ctx, func(ctx context.Context) (*jetstream.ConsumerPauseResponse, error) {
		return s.js.PauseConsumer(ctx, s.name, queue, until)
	})
	switch {
	case err != nil:
		return fmt.Errorf("stream: pause queue %q: %w", queue, orDenied(ctx, err))
	case !got.Paused:
		return fmt.Errorf("stream: pause queue %q until %s: %w; see whether the clocks agree", queue, until.UTC().Format(time.RFC3339), ErrPassed)
	}
	return nil
}

// Resume ends the pause of a queue. If it is not paused nothing happens.
func (s *Stream) Resume(ctx context.Context, queue string) error {
	ctx, stop := s.pipe.UntilDenied(ctx)
	defer stop()
	if _, err := pipeline.Question(ctx, func(ctx context.Context) (*jetstream.ConsumerPauseResponse, error) {
		return s.js.ResumeConsumer(ctx, s.name, queue)
	}); err != nil {
		return fmt.Errorf("stream: resume queue %q: %w", queue, orDenied(ctx, err))
	}
	return nil
}

// orDenied names what lies behind an error of the client library.
func orDenied(ctx context.Context, err error) error {
	if denied := context.Cause(ctx); errors.Is(denied, ErrDenied) {
		return denied
	}
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("%w; tallyman status lists those that there are", ErrNoQueue)
	}
	return pipeline.Away(err)
}
