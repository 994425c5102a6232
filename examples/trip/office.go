package main

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/journal"
)

// office handles the steps. It keeps nothing in memory: what was decided is in
// the journal, and what was done is in the world, under the command's id.
type office struct {
	j     *journal.Journal
	world *world
	at    func(point string) // where this process can be told to die
}

// ask begins a trip, once.
func (o *office) ask(ctx context.Context, w Wish) error {
	return o.decide(ctx, w, "", "ask", "asked", fmt.Sprintf("%d cents at most", w.Cents), &lock, "")
}

// decide ends a step of a trip: the event and the next command in one write. If
// the trip is not at that step any more, an earlier attempt has done so.
func (o *office) decide(ctx context.Context, w Wish, step, id, event, note string, next *tallyman.Kind[Wish, string], end string) error {
	trip, err := journal.Load(ctx, o.j, tripRun(w.Trip), trips)
	if err != nil {
		return err
	}
	_, err = trip.Decide(ctx, func(t Trip) (journal.Decision, error) {
		if t.Step != step {
			return journal.Decision{}, nil
		}
		return decision(id, event, note, next, w, end)
	})
	return err
}

// step wraps what a step does in the world. Then says what follows from its outcome.
func (o *office) step(mux *tallyman.Mux, kind tallyman.Kind[Wish, string], do func(ctx context.Context, id string, w Wish) (note string, ok bool, err error), then func(ok bool) (event string, next *tallyman.Kind[Wish, string], end string)) {
	kind.Handle(mux, func(ctx context.Context, claim *tallyman.Claim, w Wish) (string, error) {
		o.at(kind.Name() + "/before")
		note, ok, err := do(ctx, claim.ID(), w)
		if err != nil {
			return "", err
		}
		if ok { // what was refused had no effect
			o.at(kind.Name() + "/effect")
		}
		event, next, end := then(ok)
		if err := o.decide(ctx, w, kind.Name(), claim.ID(), event, note, next, end); err != nil {
			return "", err
		}
		o.at(kind.Name() + "/decided")
		return note, nil // the receipt
	})
}

// mux holds the whole of the business: what each step does, and what follows.
func (o *office) mux() *tallyman.Mux {
	mux := &tallyman.Mux{}
	type kind = *tallyman.Kind[Wish, string]
	o.step(mux, lock, func(ctx context.Context, id string, w Wish) (string, bool, error) {
		ok, err := o.book(ctx, id, "locked", w)
		if !ok {
			return "the budget does not allow it", false, err
		}
		return fmt.Sprintf("%d cents", w.Cents), true, err
	}, func(ok bool) (string, kind, string) {
		if ok {
			return "locked", &reserve, ""
		}
		return "refused", nil, givenUp
	})
	o.step(mux, reserve, func(_ context.Context, id string, w Wish) (string, bool, error) {
		if w.SoldOut {
			return "no room is left", false, nil
		}
		note, err := o.world.once(id, "room in "+w.Trip)
		return note, true, err
	}, func(ok bool) (string, kind, string) {
		if ok {
			return "reserved", &pay, ""
		}
		return "sold-out", &unlock, ""
	})
	o.step(mux, pay, func(_ context.Context, id string, w Wish) (string, bool, error) {
		if w.Declined {
			return "the bank declined", false, nil
		}
		note, err := o.world.once(id, fmt.Sprintf("payment of %d cents for %s", w.Cents, w.Trip))
		return note, true, err
	}, func(ok bool) (string, kind, string) {
		if ok {
			return "paid", &settle, ""
		}
		return "declined", &cancel, ""
	})
	o.step(mux, settle, func(ctx context.Context, id string, w Wish) (string, bool, error) {
		ok, err := o.book(ctx, id, "spent", w)
		return fmt.Sprintf("%d cents", w.Cents), ok, err
	}, func(bool) (string, kind, string) { return "settled", nil, booked })
	o.step(mux, cancel, func(_ context.Context, id string, w Wish) (string, bool, error) {
		note, err := o.world.once(id, "cancellation of the room in "+w.Trip)
		return note, true, err
	}, func(bool) (string, kind, string) { return "cancelled", &unlock, "" })
	o.step(mux, unlock, func(ctx context.Context, id string, w Wish) (string, bool, error) {
		ok, err := o.book(ctx, id, "unlocked", w)
		return fmt.Sprintf("%d cents", w.Cents), ok, err
	}, func(bool) (string, kind, string) { return "unlocked", nil, givenUp })
	return mux
}
