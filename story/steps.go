package story

import (
	"fmt"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// handedBack is the note of a step that a worker writes at shutdown.
const handedBack = "handed back at shutdown"

// step is one step of the trail and its place in the timeline.
type step struct {
	kvstate.Step
	order time.Time
}

// tellTrail tells of the record's steps. An older revision may know steps that
// the newest has cut off, or that are lost with it.
func (t *telling) tellTrail() {
	first := time.Time{}
	for _, at := range t.submitted {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	// Newest first: a claim learns its token only once it is stored.
	for _, e := range slices.Backward(slices.Concat(t.Earlier, []kvstate.Entry{t.Entry})) {
		if e.Record == nil {
			continue
		}
		var older []step
		for _, s := range e.Record.Trail {
			if !slices.ContainsFunc(t.trail, func(k step) bool { return k.At.Equal(s.At) && k.State == s.State && k.Owner == s.Owner }) {
				older = append(older, step{Step: s})
			}
		}
		t.trail = append(older, t.trail...)
	}
	order := first // nothing is written before the command is stored
	for i := range t.trail {
		if t.trail[i].At.After(order) {
			order = t.trail[i].At
		}
		t.trail[i].order = order
		t.add(order, t.step(i))
	}
}

func (t *telling) step(i int) Event {
	s := t.trail[i]
	e := Event{At: s.At, Source: SourceRecord, Actor: s.Owner, Token: s.Token, What: string(s.State)}
	last := t.record()
	if i != len(t.trail)-1 || last == nil || last.State != s.State {
		last = nil // what the record says beyond its trail belongs to its last step
	}
	if last != nil {
		e.Attempt = last.Attempt
	}
	var before kvstate.State
	if i > 0 {
		before = t.trail[i-1].State
	}
	who := word(s.Owner)
	switch s.State {
	case kvstate.Claimed:
		e.Text = t.claimed(i, who, before, last)
	case kvstate.Prepared:
		e.Text = t.prepared(i, who, before)
	case kvstate.Waiting:
		e.Text = t.waiting(&e, who, before)
	case kvstate.Completed:
		e.Text = t.completed(&e, who, before, last)
	case kvstate.Parked:
		e.Text = fmt.Sprintf("%s parked it as %s", who, word(s.Note))
		if last != nil {
			e.Text = fmt.Sprintf("%s parked it as %s%s", who, word(string(last.Reason)), because(last.Error))
		}
		e.Text += "."
	case kvstate.Requeued:
		e.Text = fmt.Sprintf("%s sent it back to its queue%s.", who, because(s.Note))
	case kvstate.Cancelled:
		e.Text = fmt.Sprintf("%s cancelled it%s.", who, because(s.Note))
	case kvstate.Discarded:
		e.Text = fmt.Sprintf("%s gave it up for good%s.", who, because(s.Note))
	default:
		e.Text = fmt.Sprintf("%s brought it into the state %s%s.", who, word(string(s.State)), because(s.Note))
	}
	return e
}

func (t *telling) claimed(i int, who string, before kvstate.State, last *kvstate.Record) string {
	s := t.trail[i]
	text := who
	switch before {
	case kvstate.None:
		text += fmt.Sprintf(" claimed it with token %d", s.Token)
	case kvstate.Claimed, kvstate.Prepared:
		if before == kvstate.Prepared && t.trail[i-1].Owner == s.Owner {
			if s.Note != "" {
				return fmt.Sprintf("%s withdrew the announced effect%s.", text, because(s.Note))
			}
			return text + " saved progress, which says that the announced effect has happened."
		}
		text += fmt.Sprintf(" took it over from %s with token %d", word(t.trail[i-1].Owner), s.Token)
	default:
		text += fmt.Sprintf(" began the next attempt with token %d", s.Token)
	}
	if last == nil {
		return text + "."
	}
	if last.Attempt > 0 {
		text += fmt.Sprintf(", as attempt %d", last.Attempt)
	}
	// Only a claim that directly follows another step shows where it resumed.
	if n := len(t.Earlier); last.Offset > 0 && n > 0 && t.Earlier[n-1].Record != nil && !lastStep(t.Earlier[n-1].Record).Equal(s.At) {
		text += fmt.Sprintf(", to resume at offset %d", last.Offset)
	}
	return text + "."
}

func (t *telling) prepared(i int, who string, before kvstate.State) string {
	s := t.trail[i]
	takenOver := before == kvstate.Waiting || before == kvstate.Prepared && t.trail[i-1].Owner != s.Owner
	if takenOver {
		return fmt.Sprintf("%s took it over with token %d, to find out what became of the announced effect.", who, s.Token)
	}
	return fmt.Sprintf("%s announced an effect on the outside world, under token %d.", who, s.Token)
}

func (t *telling) waiting(e *Event, who string, before kvstate.State) string {
	note := t.trailNote(e)
	if note == handedBack {
		e.What = "handed_back"
		return who + " handed it back at shutdown, which burns no attempt."
	}
	e.What = "failed"
	under := ""
	if e.Token > 0 && before == kvstate.Claimed {
		under = fmt.Sprintf(" under token %d", e.Token)
	}
	return fmt.Sprintf("%s failed at it%s%s.", who, under, because(note))
}

// trailNote is the note of the step that e tells of.
func (t *telling) trailNote(e *Event) string {
	for _, s := range t.trail {
		if s.At.Equal(e.At) && s.Owner == e.Actor {
			return s.Note
		}
	}
	return ""
}

func (t *telling) completed(e *Event, who string, before kvstate.State, last *kvstate.Record) string {
	if before == kvstate.Parked || last != nil && last.ResolvedBy != "" {
		// Only a person leads from parked to completed.
		e.What = "resolved"
		why := t.trailNote(e)
		text := fmt.Sprintf("%s stated its outcome as completed%s", who, because(why))
		if last != nil {
			text += receipt(last)
		}
		return text + "."
	}
	text := who + " finished it"
	if e.Token > 0 {
		text += fmt.Sprintf(" with token %d", e.Token)
	}
	if last != nil {
		if last.Attempt > 0 {
			text += fmt.Sprintf(" on attempt %d", last.Attempt)
		}
		text += receipt(last)
	}
	return text + "."
}

// receipt says what a receipt holds.
func receipt(r *kvstate.Record) string {
	text := fmt.Sprintf("; the receipt holds %s", count(len(r.Result), "byte"))
	if r.ContentType != "" {
		text += " of " + word(r.ContentType)
	}
	return text
}
