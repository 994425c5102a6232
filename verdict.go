package tallyman

import (
	"context"
	"errors"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// Action is what becomes of a command after a handler returned.
type Action int

// The actions, in the order of how final they are.
const (
	// ActComplete writes the receipt.
	ActComplete Action = iota
	// ActRetry records a failed attempt and comes back after a delay, or
	// parks the command as exhausted when that was the last attempt.
	ActRetry
	// ActPark stops the command for a human.
	ActPark
	// ActHandBack returns the command to the pool; no attempt is burned.
	ActHandBack
	// ActAbandon changes nothing: the lease is gone and with it every right.
	ActAbandon
	// ActCancel records that an operator cancelled the command.
	ActCancel
)

// Reasons for parking, as written in records.
const (
	ReasonRejected  = kvstate.ReasonRejected
	ReasonUncertain = kvstate.ReasonUncertain
	ReasonMalformed = kvstate.ReasonMalformed
)

// Verdict is the judgement on a handler's error.
type Verdict struct {
	Action Action
	Reason kvstate.Reason // for ActPark
	Delay  time.Duration  // for ActRetry, when Fixed
	Fixed  bool           // the handler chose Delay; otherwise the pool's backoff rules
}

// VerdictOf tells what a worker makes of a handler's error while the handler's
// context is alive. It is for testing handlers.
func VerdictOf(err error) Verdict { return judge(err, nil) }

// judge turns what a handler returned, and the cause for which its context
// ended (nil while it is alive), into a verdict. It is total: every pair has
// an answer. The cause outranks the error, because a handler whose context
// ended mostly reports that end in words of its own.
func judge(err, cause error) Verdict {
	switch {
	case errors.Is(cause, ErrLeaseLost):
		return Verdict{Action: ActAbandon}
	case errors.Is(cause, ErrCancelled):
		return Verdict{Action: ActCancel} // the record is final
	case err == nil:
		// Finished all the same; a receipt is worth more than a hand-back.
		return Verdict{Action: ActComplete}
	}
	if v := (*verdictError)(nil); errors.As(err, &v) {
		return v.verdict
	}
	if errors.Is(err, ErrLeaseLost) {
		return Verdict{Action: ActAbandon}
	}
	if errors.Is(cause, ErrDraining) {
		return Verdict{Action: ActHandBack}
	}
	if cause != nil && errors.Is(cause, context.Canceled) && !errors.Is(cause, ErrTimeout) {
		return Verdict{Action: ActHandBack}
	}
	return Verdict{Action: ActRetry}
}
