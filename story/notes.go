package story

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// tellNotes tells what workers noted.
func (t *telling) tellNotes() {
	for _, n := range t.Notes {
		if t.aside() {
			continue // the record's trail tells the same
		}
		order := n.At
		if at := t.submitted[n.Seq]; n.Stream == "" && at.After(order) {
			order = at // a worker's clock that is slow
		}
		t.add(order, Event{
			At: n.At, Source: SourceNote, Actor: n.Worker, Token: n.Token, Attempt: n.Attempt,
			What: string(n.What), Text: t.note(n) + ".",
		})
	}
}

func (t *telling) note(n kvstate.Note) string {
	who := word(n.Worker)
	switch n.What {
	case kvstate.NoteLeaseLost:
		return lost(n, who)
	case kvstate.NoteRefused:
		return refused(n, who)
	case kvstate.NoteStuck:
		return fmt.Sprintf("%s gave up on a handler that did not stop%s", who, because(n.Text))
	case kvstate.NoteAbsorbed:
		if n.Entry != "" {
			return fmt.Sprintf("Sequence %d, a further copy, reached %s and was absorbed%s", n.Seq, who, t.under(n.Entry))
		}
		return fmt.Sprintf("D%s reached %s after the outcome, and was absorbed", delivery(n)[1:], who)
	case kvstate.NoteDropped:
		if n.Text == "" {
			return fmt.Sprintf("D%s reached %s with its lease run out, and was left to come again", delivery(n)[1:], who)
		}
		return fmt.Sprintf("%s left %s to come again%s", who, delivery(n), because(n.Text))
	case kvstate.NoteHandedBack:
		return fmt.Sprintf("%s handed back %s at shutdown, before it had begun", who, delivery(n))
	case kvstate.NoteCancelled:
		return fmt.Sprintf("%s let go of %s, since the command had been cancelled", who, delivery(n))
	case kvstate.NoteFellBack:
		return fmt.Sprintf("%s found its record damaged, kept the bytes%s, and went on from the revision before%s", who, t.under(n.Entry), because(n.Text))
	case kvstate.NoteMoved:
		return fmt.Sprintf("%s carried its record into another shard: %s", who, quote(n.Text))
	case kvstate.NoteForwarded:
		return fmt.Sprintf("%s found sequence %d of stream %s, which is not the shard of this id, and submitted it here", who, n.Seq, word(n.Stream))
	case kvstate.NoteParked:
		if n.Stream != "" {
			return fmt.Sprintf("%s parked sequence %d of stream %s, which is not the shard of this id, under %s in the bucket there%s", who, n.Seq, word(n.Stream), word(string(n.Entry)), because(n.Text))
		}
		if _, ok := followUp(n.Entry); ok {
			return fmt.Sprintf("%s parked a follow-up that could not be born%s%s", who, t.under(n.Entry), because(n.Text))
		}
		return fmt.Sprintf("%s parked sequence %d beside the record%s%s", who, n.Seq, t.under(n.Entry), because(n.Text))
	}
	return fmt.Sprintf("%s noted %s%s", who, word(string(n.What)), because(n.Text))
}

func lost(n kvstate.Note, who string) string {
	what := who + " lost " + held(n.Token, n.Attempt)
	if n.Silence <= 0 {
		return fmt.Sprintf("%s: it saw that someone else had written the record", what)
	}
	what += lapse(n)
	if late := n.NoticedAt.Sub(n.At); late >= time.Second {
		what += fmt.Sprintf(", and noticed %s later", span(late))
	}
	return what
}

// lapse says how a lease ran out.
func lapse(n kvstate.Note) string {
	if n.Missed == 0 {
		return fmt.Sprintf(" without having sent a heartbeat for %s: its process stood still", span(n.Silence))
	}
	return fmt.Sprintf(" after %s, %s after the last sign of life that was confirmed", count(n.Missed, "missed heartbeat"), span(n.Silence))
}

func refused(n kvstate.Note, who string) string {
	under, why := "", because(n.Text)
	if n.Token > 0 {
		under = fmt.Sprintf(" under token %d", n.Token)
	}
	if n.Silence > 0 {
		why = ": it had lost its lease" + lapse(n)
	}
	switch n.Of {
	case "claim":
		return fmt.Sprintf("%s wanted to claim it and was refused%s", who, why)
	case "progress":
		return fmt.Sprintf("%s's progress%s was refused%s", who, under, why)
	case "failure":
		return fmt.Sprintf("%s's handler ended late%s with a failure, which was refused%s", who, under, why)
	}
	return fmt.Sprintf("%s's late result%s was refused%s", who, under, why)
}

func delivery(n kvstate.Note) string {
	return fmt.Sprintf("delivery %d of sequence %d", n.Delivery, n.Seq)
}

// under says where an entry lies, and whether it still does.
func (t *telling) under(key command.Token) string {
	if t.filed(key) {
		return " under " + word(t.key(key))
	}
	return fmt.Sprintf(" under %s, which is not there any more", word(t.key(key)))
}

// tellFiled tells of entries beside the record that no note has told of.
func (t *telling) tellFiled() {
	told := map[command.Token]bool{}
	for _, n := range t.Notes {
		told[n.Entry] = true
	}
	for _, e := range t.Filed {
		if told[e.Key] {
			continue
		}
		ev := Event{At: e.At, Source: SourceFiled, What: "filed"}
		seq, absorbed := kvstate.AbsorbedSeq(e.Key)
		n, unborn := followUp(e.Key)
		switch {
		case absorbed:
			ev.What, ev.Text = "absorbed", fmt.Sprintf("Sequence %d, a further copy, was absorbed.", seq)
		case e.Record != nil && unborn:
			ev.What, ev.Actor = "parked", e.Record.Owner
			ev.Text = fmt.Sprintf("%s parked follow-up %d under %s, since it could not be born%s.", word(e.Record.Owner), n, t.key(e.Key), because(e.Record.Error))
		case e.Record != nil:
			ev.What, ev.Actor = string(e.Record.State), e.Record.Owner
			ev.Text = fmt.Sprintf("%s parked a further copy as %s under %s%s.", word(e.Record.Owner), word(string(e.Record.Reason)), t.key(e.Key), because(e.Record.Error))
			if e.Record.State != kvstate.Parked {
				ev.Text = fmt.Sprintf("%s brought the copy under %s into the state %s.", word(e.Record.Owner), t.key(e.Key), word(string(e.Record.State)))
			}
		default:
			ev.What, ev.Text = "damaged", fmt.Sprintf("Bytes that did not decode are kept under %s.", e.Key)
		}
		t.add(e.At, ev)
	}
}

// followUp reads the key of a follow-up that could not be born.
func followUp(key command.Token) (n int, ok bool) {
	rest, ok := strings.CutPrefix(string(key), "_conflict/")
	at := strings.LastIndexByte(rest, '/')
	if !ok || at < 0 {
		return 0, false
	}
	n, err := strconv.Atoi(rest[at+1:])
	return n, err == nil
}
