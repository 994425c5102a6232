package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tallyman-go/tallyman/journal"
)

// report tells every trip from its events, and then what the world, the budget
// and the journal's audit say.
func (o *office) report(ctx context.Context, out io.Writer) error {
	for _, w := range wishes {
		fmt.Fprintf(out, "%s\n", w.Trip)
		_, err := o.j.Replay(ctx, tripRun(w.Trip), func(ev journal.Recorded) error {
			var c change
			if err := ev.Decode(&c); err != nil {
				return err
			}
			fmt.Fprintf(out, "  %d  %-10s %-32s then: %s\n", ev.Seq, ev.Kind, c.Note, c.Next)
			return nil
		})
		if err != nil {
			return err
		}
	}
	effects, err := o.world.effects()
	if err != nil {
		return err
	}
	repeated, err := o.world.repeated()
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "effects in the world")
	for _, e := range effects {
		fmt.Fprintf(out, "  %s\n", e)
	}
	fmt.Fprintf(out, "  (%d requests were repeated, and changed nothing)\n", repeated)
	budget, err := journal.Load(ctx, o.j, budgetRun, budgets)
	if err != nil {
		return err
	}
	b := budget.State()
	fmt.Fprintf(out, "budget\n  limit %d, locked %v, spent %v\n", limit, b.Locked, b.Spent)
	audit, err := journal.Audit(ctx, o.j, journal.AuditOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, audit.Summary())
	if !audit.Balanced {
		return errors.New("the journal does not balance")
	}
	return nil
}
