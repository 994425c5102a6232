package main

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/journal"
)

// limit is what may be locked and spent in all.
const limit = 100_000 // cents

// budgetRun is the run of the budget. All trips write to it, and the journal
// lets one of them at a time.
const budgetRun = "budget"

// Budget is the state of that run: how many cents are locked and spent, by trip.
type Budget struct {
	Locked map[string]int
	Spent  map[string]int
	// Gone holds the trips that were given up. Whoever still tries to lock for
	// one of them is an attempt that was believed dead, and comes too late.
	Gone map[string]bool
}

func (b Budget) used() (n int) {
	for _, by := range []map[string]int{b.Locked, b.Spent} {
		for _, cents := range by {
			n += cents
		}
	}
	return n
}

// entry is the data of every event of the budget.
type entry struct {
	Trip  string
	Cents int
}

var budgets = journal.Model[Budget]{Version: "1", Fold: func(b *Budget, ev journal.Recorded) error {
	var e entry
	if err := ev.Decode(&e); err != nil {
		return err
	}
	if b.Locked == nil {
		b.Locked, b.Spent, b.Gone = map[string]int{}, map[string]int{}, map[string]bool{}
	}
	switch ev.Kind {
	case "locked":
		b.Locked[e.Trip] += e.Cents
	case "spent":
		delete(b.Locked, e.Trip)
		b.Spent[e.Trip] += e.Cents
	case "unlocked":
		delete(b.Locked, e.Trip)
		b.Gone[e.Trip] = true
	default:
		return fmt.Errorf("an event of kind %q", ev.Kind)
	}
	return nil
}}

// book writes one event of the budget for a trip, unless it is there already,
// and reports whether the budget allows it. However many trips do so at once,
// each decides on the state that it then changes.
func (o *office) book(ctx context.Context, id, kind string, w Wish) (allowed bool, err error) {
	budget, err := journal.Load(ctx, o.j, budgetRun, budgets)
	if err != nil {
		return false, err
	}
	_, err = budget.Decide(ctx, func(b Budget) (journal.Decision, error) {
		allowed = true
		_, isLocked := b.Locked[w.Trip]
		_, isSpent := b.Spent[w.Trip]
		switch {
		case kind == "locked" && (isLocked || isSpent || b.Gone[w.Trip]), kind != "locked" && !isLocked:
			return journal.Decision{}, nil // another attempt did it
		case kind == "locked" && b.used()+w.Cents > limit:
			allowed = false
			return journal.Decision{}, nil
		}
		ev, err := journal.NewEvent(kind, entry{Trip: w.Trip, Cents: w.Cents})
		return journal.Decision{ID: id, Events: []journal.Event{ev}}, err
	})
	return allowed, err
}
