package tallyman

import (
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/lease"
)

// Errors that callers test for with errors.Is. The text of a returned error
// says what happened, to which id, and what to do next.
var (
	// ErrInvalidID means that a command id breaks the rules of package command.
	ErrInvalidID = command.ErrInvalidID
	// ErrInvalidName means that a pool, queue or kind is not one subject token.
	ErrInvalidName = command.ErrInvalidName
	// ErrMalformed means that a payload, record or result did not decode.
	ErrMalformed = command.ErrMalformed
	// ErrConflict means that the id already stands for another kind or payload.
	ErrConflict = command.ErrConflict
	// ErrUnconfirmed means that the server has not confirmed a submission. It
	// may or may not be stored; submitting the same command again is safe.
	ErrUnconfirmed = command.ErrUnconfirmed
	// ErrTooLarge means that a command, result or checkpoint exceeds what the server stores.
	ErrTooLarge = command.ErrTooLarge
	// ErrPoolFull means that the command stream has reached a limit and stayed there.
	ErrPoolFull = command.ErrPoolFull
	// ErrNoPool means that the pool's stream, bucket or settings do not exist.
	ErrNoPool = command.ErrNoPool
	// ErrNoQueue means that a queue has no consumer.
	ErrNoQueue = errors.New("no such queue")
	// ErrSettings means that a participant and the pool disagree on a shared setting.
	ErrSettings = errors.New("settings disagree")
	// ErrDenied means that the server refused a subject to this user.
	// The error names the subject.
	ErrDenied = pipeline.ErrDenied
	// ErrUnavailable means that the servers have no JetStream to offer just
	// now: it is off, starting, or without a leader. Nothing was done.
	ErrUnavailable = command.ErrUnavailable
	// ErrNotFound means that a command id is unknown to the pool.
	ErrNotFound = errors.New("not found")
	// ErrParked means that the command waits for a human.
	ErrParked = errors.New("parked")

	// ErrLeaseLost is the cancellation cause of a handler's context once the
	// worker may no longer act for the command, and what Claim.Progress
	// returns from then on. Stop; another worker has or will have the command.
	ErrLeaseLost = lease.ErrLost
	// ErrDraining is the cancellation cause of a handler's context when the
	// worker shuts down and its drain time is over. The command is handed back
	// and burns no attempt.
	ErrDraining = errors.New("worker is draining")
	// ErrTimeout is the cancellation cause when a route's timeout has passed.
	// It is a failed attempt.
	ErrTimeout = errors.New("handler timed out")
	// ErrCancelled is the cancellation cause when an operator cancelled the command.
	ErrCancelled = errors.New("command cancelled")
)

// Reject marks err as final: the command is parked as "rejected" at once,
// without further attempts. Reject(nil) is nil.
func Reject(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, verdict: Verdict{Action: ActPark, Reason: ReasonRejected}}
}

// RetryAfter marks err as a failed attempt whose next try comes after d
// instead of the pool's backoff, which still rules if d is not positive.
// Attempts stay bounded. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, verdict: Verdict{Action: ActRetry, Delay: max(d, 0), Fixed: true}}
}

// Uncertain marks err as an outcome that nobody knows: the command is parked
// as "uncertain" for a human and never run again by itself. Uncertain(nil) is nil.
func Uncertain(err error) error {
	if err == nil {
		return nil
	}
	return &verdictError{err: err, verdict: Verdict{Action: ActPark, Reason: ReasonUncertain}}
}

type verdictError struct {
	err     error
	verdict Verdict
}

func (e *verdictError) Error() string { return e.err.Error() }
func (e *verdictError) Unwrap() error { return e.err }

// PanicError is a handler's panic, caught and treated as a failed attempt.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }
