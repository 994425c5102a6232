package kvstate

import (
	"errors"
	"fmt"
	"slices"
)

// State is where a command stands.
type State string

// The states. None is the absence of a record: the command is in the stream
// and no one has written about it yet.
const (
	None      State = ""
	Claimed   State = "claimed"   // a worker has it; progress may have been saved
	Prepared  State = "prepared"  // an effect on the outside world is about to happen, or did
	Waiting   State = "waiting"   // an attempt failed or was handed back; the next one is due at NextAt
	Completed State = "completed" // the receipt; final
	Parked    State = "parked"    // stopped for a human, with the whole command
	Requeued  State = "requeued"  // a human sent it back
	Cancelled State = "cancelled" // taken out by a human; final
	Discarded State = "discarded" // parked, then given up by a human; final
)

// Reason says why a command is parked.
type Reason string

// The reasons.
const (
	ReasonRejected    Reason = "rejected"     // the handler said never
	ReasonExhausted   Reason = "exhausted"    // the last attempt failed
	ReasonUncertain   Reason = "uncertain"    // nobody knows whether the effect happened
	ReasonConflict    Reason = "conflict"     // the id already means another command
	ReasonMalformed   Reason = "malformed"    // it could not be decoded
	ReasonUnknownKind Reason = "unknown_kind" // no handler for its kind
	ReasonExpired     Reason = "expired"      // it came after its NotAfter
	ReasonCorrupt     Reason = "corrupt"      // its own record did not decode
)

// Reasons lists every reason, for help texts and metrics.
func Reasons() []Reason {
	return []Reason{
		ReasonRejected, ReasonExhausted, ReasonUncertain, ReasonConflict,
		ReasonMalformed, ReasonUnknownKind, ReasonExpired, ReasonCorrupt,
	}
}

// ErrIllegalTransition is wrapped by the error of Check, which names both states.
var ErrIllegalTransition = errors.New("illegal transition")

// transitions is the whole legal table; what is not in it is refused.
var transitions = map[State][]State{
	None:      {Claimed, Prepared, Waiting, Completed, Parked, Cancelled},
	Claimed:   {Claimed, Prepared, Waiting, Completed, Parked, Cancelled},
	Prepared:  {Prepared, Claimed, Waiting, Completed, Parked, Cancelled},
	Waiting:   {Claimed, Prepared, Waiting, Parked, Cancelled},
	Requeued:  {Claimed, Requeued, Waiting, Parked, Cancelled},
	Parked:    {Requeued, Completed, Discarded},
	Completed: {},
	Cancelled: {},
	Discarded: {},
}

// States lists every state that a record can have, in the order of a life.
func States() []State {
	return []State{Claimed, Prepared, Waiting, Completed, Parked, Requeued, Cancelled, Discarded}
}

// Check returns an error that wraps ErrIllegalTransition unless a record may
// go from one state to the other.
func Check(from, to State) error {
	if slices.Contains(transitions[from], to) {
		return nil
	}
	return fmt.Errorf("kvstate: %w from %q to %q", ErrIllegalTransition, from.orNone(), to.orNone())
}

// Next lists the states that may follow s.
func (s State) Next() []State { return slices.Clone(transitions[s]) }

// Terminal reports whether a command in state s needs nothing more from a
// worker: it is completed, cancelled, discarded or parked. Only then may its
// message leave the stream.
func (s State) Terminal() bool { return s.Final() || s == Parked }

// Final reports whether s can never change again.
func (s State) Final() bool { return s == Completed || s == Cancelled || s == Discarded }

// Known reports whether s is a state that this version knows.
func (s State) Known() bool { _, ok := transitions[s]; return ok && s != None }

func (s State) orNone() State {
	if s == None {
		return "none"
	}
	return s
}
