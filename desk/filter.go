package desk

import (
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// Filter selects parked commands. The zero value selects all of them.
type Filter struct {
	Reason kvstate.Reason // "" for any
	Kind   string         // "" for any
	// OlderThan and NewerThan bound how long a command has been parked. 0 for no bound.
	OlderThan time.Duration
	NewerThan time.Duration
}

// Match reports whether a parked record is selected at the given time. For
// one that was sent back it tells whether it was selected while it was parked.
func (f Filter) Match(r *kvstate.Record, now time.Time) bool {
	if f.Kind != "" && f.Kind != r.Kind {
		return false
	}
	reason, since := r.Reason, r.Since()
	switch r.State {
	case kvstate.Parked:
	case kvstate.Requeued:
		reason, since = whenParked(r)
	default:
		return false
	}
	age := now.Sub(since)
	return (f.Reason == "" || f.Reason == reason) &&
		(f.OlderThan <= 0 || age >= f.OlderThan) && (f.NewerThan <= 0 || age < f.NewerThan)
}

// whenParked reads from the trail why and when a command was parked last.
func whenParked(r *kvstate.Record) (kvstate.Reason, time.Time) {
	for i := len(r.Trail) - 1; i >= 0; i-- {
		if s := r.Trail[i]; s.State == kvstate.Parked {
			return kvstate.Reason(s.Note), s.At
		}
	}
	return "", r.StoredAt
}
