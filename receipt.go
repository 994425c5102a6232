package tallyman

import (
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// State is where a command stands; see [kvstate.State].
type State = kvstate.State

// The states in which a command needs no worker any more.
const (
	Completed = kvstate.Completed
	Parked    = kvstate.Parked
	Cancelled = kvstate.Cancelled
	Discarded = kvstate.Discarded
)

// Receipt is the durable outcome of a command.
type Receipt struct {
	ID          string
	Kind        string
	State       State // Completed, Parked, Cancelled or Discarded
	Result      []byte
	ContentType string
	ResolvedBy  string // the person who stated the result; empty if a worker did
	Attempt     int
	Token       uint64
	Owner       string         // the worker or person that wrote it
	At          time.Time      // when it was written, by its writer's clock
	Reason      kvstate.Reason // if parked
	Error       string         // of the last failed attempt, if any
}

func receiptOf(r *kvstate.Record) Receipt {
	out := Receipt{
		ID: r.ID, Kind: r.Kind, State: r.State, Result: r.Result, ContentType: r.ContentType, ResolvedBy: r.ResolvedBy,
		Attempt: r.Attempt, Token: r.Token, Owner: r.Owner, Reason: r.Reason, Error: r.Error,
	}
	if n := len(r.Trail); n > 0 {
		out.At = r.Trail[n-1].At
	}
	return out
}
