package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Submitter submits commands without waiting for the outcome. It must be safe
// for concurrent use. If it returns an error, nothing was submitted and done is
// not called; otherwise done is called once, at the latest soon after ctx has ended.
type Submitter interface {
	SubmitAsync(ctx context.Context, c command.Command, done func(error)) error
}

// Via makes a Submitter of a producer: outbox.Via(pool.NewProducer(...)).
func Via[S any](producer interface {
	SubmitAsync(ctx context.Context, c command.Command, done func(S, error)) error
}) Submitter {
	return via[S]{producer}
}

type via[S any] struct {
	producer interface {
		SubmitAsync(ctx context.Context, c command.Command, done func(S, error)) error
	}
}

func (v via[S]) SubmitAsync(ctx context.Context, c command.Command, done func(error)) error {
	return v.producer.SubmitAsync(ctx, c, func(_ S, err error) { done(err) })
}

// States tells where commands stand, in the order of the ids; *tallyman.Pool
// does. The empty state stands for a command that no worker has written about.
type States interface {
	States(ctx context.Context, ids []string) ([]kvstate.State, error)
}

// fate is what the outcome of a submission means for its row.
type fate int

const (
	sent   fate = iota // the pool has it
	wait               // nobody's fault, or not this row's: again later, and it counts for nothing
	retry              // again later, as often as Config.Attempts says
	refuse             // never
)

// judge is total: whatever it does not know is tried again, within bounds.
func judge(err error) fate {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return sent
	case is(command.ErrConflict, command.ErrTooLarge, command.ErrInvalidID, command.ErrInvalidName, command.ErrMalformed):
		return refuse
	case is(command.ErrUnconfirmed, command.ErrPoolFull, command.ErrNoPool, command.ErrUnavailable, kvstate.ErrDenied,
		errStopped, context.Canceled, context.DeadlineExceeded):
		return wait
	}
	return retry
}

// errStopped is the cause of the end of submissions when a relay stops.
var errStopped = errors.New("the relay stops")

// backoffOf is the pause after a number of failed tries: it doubles from least
// to most.
func backoffOf(attempts int64, least, most time.Duration) time.Duration {
	d := least
	for i := int64(1); i < attempts && d < most; i++ {
		d *= 2
	}
	return min(d, most)
}
