package tallyman

import (
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// EventType says what a worker has just seen or done.
type EventType int

// The events.
const (
	EventCompleted  EventType = iota // receipt stored and acked; Handler and Settle are set
	EventAbsorbed                    // a repeated delivery or another copy changed nothing
	EventRetried                     // a failed attempt, recorded; Handler is set
	EventParked                      // stopped for a human; Reason is set
	EventTakeover                    // an attempt that had ended elsewhere goes on here
	EventHandedBack                  // given back at shutdown
	EventRefused                     // a write lost its compare-and-swap: someone else owns the command
	EventLeaseLost                   // the lease ended while a handler was at work; Err says how
	EventStuck                       // a handler ignored the end of its context
	EventDropped                     // a delivery whose lease had run out before it could begin
	EventCancelled                   // an operator cancelled the command while this worker had it
	EventFellBack                    // a damaged record; the attempt resumes from the one before it
	EventForwarded                   // a command that lay in another shard than its id's was submitted there
)

// Event is one thing that happened to a command at this worker.
type Event struct {
	Type    EventType
	ID      string
	Kind    string
	Queue   string
	Attempt int
	// Key is where a copy that was parked or absorbed is filed, if not under its
	// id, and where damaged bytes are kept.
	Key     command.Token
	Reason  kvstate.Reason
	Err     error
	Handler time.Duration // how long the handler ran
	Settle  time.Duration // from the handler's return to the durable record
	// FollowUps is how many commands were born with the receipt.
	FollowUps int
}

// String returns the event's name as it stands in logs and metrics.
func (t EventType) String() string {
	names := [...]string{
		"completed", "absorbed", "retried", "parked", "takeover",
		"handed_back", "refused", "lease_lost", "stuck", "dropped",
		"cancelled", "fell_back", "forwarded",
	}
	if int(t) < len(names) {
		return names[t]
	}
	return "unknown"
}
