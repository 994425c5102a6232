package desk

import (
	"slices"

	"github.com/tallyman-go/tallyman/kvstate"
)

// Next lists the acts that a command with this record admits, as the tallyman
// command spells them. Aside says that the record is not filed under its id; no
// record, nil, means that nobody has written about the command yet.
func Next(r *kvstate.Record, aside bool) []string {
	acts := []string{}
	if r == nil {
		r = &kvstate.Record{}
	}
	s, next := r.State, r.State.Next()
	admits := func(to kvstate.State) bool { return slices.Contains(next, to) }
	switch {
	case s == kvstate.Parked && aside:
		acts = append(acts, "discard")
	case s == kvstate.Parked:
		for _, a := range []struct {
			to   kvstate.State
			name string
		}{{kvstate.Requeued, "requeue"}, {kvstate.Completed, "resolve"}, {kvstate.Discarded, "discard"}} {
			if admits(a.to) {
				acts = append(acts, a.name)
			}
		}
	case r.Open(): // an effect may be happening
	case admits(kvstate.Cancelled):
		acts = append(acts, "cancel")
	}
	return acts
}

// advice says what may be done with a command, in a sentence. Aside as in Next.
func advice(r *kvstate.Record, aside bool) string {
	if aside && r.State == kvstate.Parked {
		return "it was parked aside, since " + asideWhy(r.Reason) + ", and cannot run as it is: discard it, or submit it under another id"
	}
	if r.Open() {
		return "it has announced an effect on the outside world, which may be happening: wait for its outcome, or until it is parked as uncertain, then resolve or discard it"
	}
	switch r.State {
	case kvstate.None:
		return "no worker has written about it yet: wait for its outcome, or cancel it"
	case kvstate.Claimed, kvstate.Waiting:
		return "it is under way: wait for its outcome, or cancel it"
	case kvstate.Requeued:
		return "it was sent back and runs again: wait for its outcome, or cancel it"
	case kvstate.Parked:
		return "it is parked: requeue, resolve or discard it"
	case kvstate.Completed:
		return "it has its receipt, which never changes: to do it again, submit it under another id"
	case kvstate.Cancelled, kvstate.Discarded:
		return "that is final: to do it after all, submit it under another id"
	}
	return "this version does not know that state"
}
