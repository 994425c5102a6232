package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Await calls start, which sends a request and returns, and waits for what done
// is told. If start fails nothing was sent, and its error comes back. If ctx
// ends first the error is its cause, and what is told later is lost.
func Await[T any](ctx context.Context, start func(done func(T, error)) error) (T, error) {
	v, _, err := await(ctx, start)
	return v, err
}

// AwaitWrite is Await for what changes something: if ctx ends first nobody
// knows whether it was done, and the error wraps ErrIndeterminate as well.
func AwaitWrite[T any](ctx context.Context, start func(done func(T, error)) error) (T, error) {
	v, open, err := await(ctx, start)
	if open {
		err = fmt.Errorf("%w: %w", ErrIndeterminate, err)
	}
	return v, err
}

// await reports as open that ctx ended before the outcome was told.
func await[T any](ctx context.Context, start func(done func(T, error)) error) (value T, open bool, err error) {
	type outcome struct {
		value T
		err   error
	}
	outcomes := make(chan outcome, 1)
	if err := start(func(v T, err error) { outcomes <- outcome{v, err} }); err != nil {
		return value, false, err
	}
	select {
	case o := <-outcomes:
		return o.value, false, o.err
	case <-ctx.Done():
		return value, true, context.Cause(ctx)
	}
}

// Ask sends a request and waits for its one answer.
func (p *Pipe) Ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	return Await(ctx, func(done func(*nats.Msg, error)) error {
		return p.Send(&nats.Msg{Subject: subject, Data: body}, done)
	})
}

// Again calls f, which may be repeated, until it ends otherwise than by running
// out of the time of one try, or ctx ends. A cluster that elects a leader leaves
// requests without an answer, and those made through the client library wait for as long as
// their context lets them.
func Again(ctx context.Context, try time.Duration, f func(context.Context) error) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, try)
		err := f(bounded)
		late := bounded.Err() != nil
		cancel()
		if err == nil || !late || ctx.Err() != nil {
			return err
		}
	}
}

// Within returns ctx, with limit if it has no deadline of its own.
func Within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, limited := ctx.Deadline(); limited {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, limit)
}

// Sleep waits for d, or returns ctx's cause if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Question asks the servers through the client library, which waits for an
// answer for as long as ctx lets it, and one that was asked of a server that
// died, or of a cluster without a leader, is never answered. So f, which may be
// repeated, gets DefaultTimeout, and is called again until ctx ends; once only
// if ctx has no deadline.
func Question[T any](ctx context.Context, f func(context.Context) (T, error)) (answer T, err error) {
	once := func(ctx context.Context) error {
		answer, err = f(ctx)
		return err
	}
	if _, limited := ctx.Deadline(); limited {
		err = Again(ctx, DefaultTimeout, once)
		return answer, err
	}
	bounded, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	return f(bounded)
}
