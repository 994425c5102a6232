package story

import (
	"fmt"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// state is where the command stands.
func (t *telling) state() string {
	switch {
	case t.Entry.Err != nil:
		return StateDamaged
	case t.record() != nil:
		return string(t.record().State)
	case len(t.pendingCopies()) > 0 || t.Intake != nil:
		return StatePending
	}
	return StateGone
}

// verdict says where the command stands and what may be done next.
func (t *telling) verdict() string {
	r := t.record()
	switch {
	case t.aside() && r != nil:
		return t.asideVerdict(r)
	case t.Entry.Err != nil && len(t.pendingCopies()) > 0:
		return "Its record is damaged. The worker that gets it next keeps the bytes, and goes on from the revision before if nothing but progress is lost by that, or else parks it as corrupt."
	case t.Entry.Err != nil:
		return "Its record is damaged, and it has left the stream: nothing will happen by itself. Ask the audit what is missing."
	case r == nil && len(t.pendingCopies()) > 0:
		return t.pending()
	case r == nil && t.Intake != nil:
		return "Pending: a worker has to carry it to its own shard first; then it runs there."
	case r == nil:
		return "Nothing will happen: it is neither in the stream nor on record. Submitted again, it runs as if it were new."
	}
	text := t.standing(r) + options(r, false)
	if !r.State.Terminal() && len(t.pendingCopies()) == 0 {
		text += " But it is not in the stream any more, so no worker will get it: ask the audit."
	}
	return text
}

func (t *telling) pending() string {
	c := t.pendingCopies()[0]
	text := fmt.Sprintf("Pending for %s in queue %s: ", span(t.Asked.Sub(c.At)), word(c.Queue))
	switch {
	case c.Acked:
		return text + "it is acked, or given up, and has no outcome, so no worker gets it any more: ask the audit what to do." + options(nil, false)
	case c.Delivered == DeliveredNever:
		text += "no worker has got it yet."
		if c.Paused {
			text += fmt.Sprintf(" The queue is paused; tallyman status says by whom and until when, and tallyman resume %s ends it.", word(c.Queue))
		}
		if c.Unserved {
			text += fmt.Sprintf(" The queue has no consumer: if it is meant, make one with tallyman init --queue %s.", word(c.Queue))
		}
	case c.Delivered == DeliveredOnce:
		text += "it has been delivered, and may be running. A first attempt leaves no record until it ends or saves progress."
	default:
		text += "whether a worker has got it is not known."
	}
	return text + options(nil, false)
}

// standing says what a record that decodes means for now.
func (t *telling) standing(r *kvstate.Record) string {
	switch r.State {
	case kvstate.Claimed, kvstate.Prepared:
		return t.running(r)
	case kvstate.Waiting:
		next := "the next try is due now."
		if in := r.NextAt.Sub(t.Asked); in > 0 {
			next = fmt.Sprintf("the next try is due in %s.", span(in))
		}
		return fmt.Sprintf("Waiting after %s%s: %s", count(r.Attempt, "attempt"), t.limit(), next)
	case kvstate.Requeued:
		return fmt.Sprintf("Sent back by %s: it waits for a worker.", word(r.Owner))
	case kvstate.Completed:
		return fmt.Sprintf("Completed, and final.%s Submitted again, it is absorbed.", t.kept(r))
	case kvstate.Parked:
		return fmt.Sprintf("Parked as %s: nothing happens until a person decides.", word(string(r.Reason)))
	case kvstate.Cancelled:
		return fmt.Sprintf("Cancelled, and final.%s", t.kept(r))
	case kvstate.Discarded:
		return fmt.Sprintf("Given up by %s, and final.%s", word(r.Owner), t.kept(r))
	}
	return fmt.Sprintf("In the state %s, which this version does not know.", word(string(r.State)))
}

func (t *telling) running(r *kvstate.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Running at %s", word(r.Owner))
	if r.Token > 0 {
		fmt.Fprintf(&b, " under token %d", r.Token)
	}
	fmt.Fprintf(&b, ", attempt %d%s", r.Attempt, t.limit())
	if r.Offset > 0 {
		fmt.Fprintf(&b, ", saved up to offset %d", r.Offset)
	}
	if !r.StoredAt.IsZero() {
		fmt.Fprintf(&b, "; its record was last written %s ago", span(t.Asked.Sub(r.StoredAt)))
	}
	b.WriteString(".")
	if r.State == kvstate.Prepared {
		b.WriteString(" It has announced an effect: if that worker is gone, the handler's Confirm decides, or it is parked as uncertain.")
		return b.String()
	}
	b.WriteString(" If that worker is gone, another takes over once the lease")
	if t.Terms.Lease > 0 {
		fmt.Fprintf(&b, " of %v", t.Terms.Lease)
	}
	b.WriteString(" has run out.")
	return b.String()
}

func (t *telling) limit() string {
	if t.Terms.MaxAttempts <= 0 {
		return ""
	}
	return fmt.Sprintf(" (the pool allows %d)", t.Terms.MaxAttempts)
}

// kept says until when a final record is there.
func (t *telling) kept(r *kvstate.Record) string {
	if t.Terms.Retention <= 0 || r.StoredAt.IsZero() {
		return ""
	}
	return fmt.Sprintf(" The record expires on %s.", r.Since().Add(t.Terms.Retention).UTC().Format(time.DateTime+" UTC"))
}
