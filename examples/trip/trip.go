package main

import (
	"fmt"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/journal"
)

// Wish is what a traveller asks for.
type Wish struct {
	Trip  string
	Cents int
	// What the hotel and the bank will say.
	SoldOut  bool
	Declined bool
}

// One value per kind of step.
var (
	lock    = tallyman.NewKind[Wish, string]("lock")    // keep part of the budget for the trip
	reserve = tallyman.NewKind[Wish, string]("reserve") // a room
	pay     = tallyman.NewKind[Wish, string]("pay")     // for the room
	settle  = tallyman.NewKind[Wish, string]("settle")  // turn what is locked into what is spent
	cancel  = tallyman.NewKind[Wish, string]("cancel")  // undo reserve
	unlock  = tallyman.NewKind[Wish, string]("unlock")  // undo lock
)

// The steps of a trip: what it waits for. Each is the kind of the command that is under way.
const (
	booked  = "booked"
	givenUp = "given up"
)

// Trip is the state of a trip's run.
type Trip struct {
	Step string // the command under way, booked or given up
	Why  string // it is given up
	Room string
	Paid string
}

func (t Trip) over() bool { return t.Step == booked || t.Step == givenUp }

// change is the data of every event of a trip.
type change struct {
	Next string // the step that follows
	Note string // what came of the one before: a reference, or a reason
}

// tripRun is the run of a trip in the journal.
func tripRun(trip string) string { return "trip/" + trip }

// trips says how a trip's state follows from its events.
var trips = journal.Model[Trip]{Version: "1", Fold: func(t *Trip, ev journal.Recorded) error {
	var c change
	if err := ev.Decode(&c); err != nil {
		return err
	}
	t.Step = c.Next
	switch ev.Kind {
	case "asked", "locked", "settled", "cancelled", "unlocked":
	case "reserved":
		t.Room = c.Note
	case "paid":
		t.Paid = c.Note
	case "refused", "sold-out", "declined":
		t.Why = c.Note
	default:
		return fmt.Errorf("an event of kind %q", ev.Kind)
	}
	return nil
}}

// decision makes what a step's end leads to: an event, and the next command if there is one.
func decision(id, event, note string, next *tallyman.Kind[Wish, string], w Wish, end string) (journal.Decision, error) {
	d := journal.Decision{ID: id}
	step := end
	if next != nil {
		step = next.Name()
		c, err := next.Command("", w) // the journal gives it the id <run>/<decision>/1
		if err != nil {
			return d, err
		}
		d.Commands = []tallyman.Command{c}
	}
	ev, err := journal.NewEvent(event, change{Next: step, Note: note})
	d.Events = []journal.Event{ev}
	return d, err
}
