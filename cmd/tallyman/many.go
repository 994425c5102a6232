package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/bar"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// manyFlags are those of acts on many parked commands.
type manyFlags struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Ids of the commands, as they were submitted, or keys that parked shows. Put -- before one that begins with -."`
	filterFlags
	All    bool `help:"All that are parked."`
	DryRun bool `help:"Only list what would be acted on."`
	actFlags
	JSON bool `name:"json" help:"Print the counts as one JSON object."`
}

func reason(s string) kvstate.Reason { return kvstate.Reason(s) }

func knownReason(s string) error {
	if s != "" && !slices.Contains(kvstate.Reasons(), reason(s)) {
		return fmt.Errorf("%w: --reason %q; give one of %v", cli.ErrUsage, s, kvstate.Reasons())
	}
	return nil
}

func (f *manyFlags) bulk() (desk.Bulk, error) {
	filter, err := f.filter()
	switch {
	case err != nil:
		return desk.Bulk{}, err
	case len(f.IDs) == 0 && !f.All && !f.set():
		return desk.Bulk{}, fmt.Errorf("%w: name commands, or select some with --reason, --kind, --older-than, --newer-than, or --all", cli.ErrUsage)
	case len(f.IDs) > 0 && (f.All || f.set()):
		return desk.Bulk{}, fmt.Errorf("%w: ids, and filters or --all, exclude each other", cli.ErrUsage)
	}
	return desk.Bulk{IDs: f.IDs, Filter: filter, DryRun: f.DryRun}, nil
}

// manyAct is what desk does with many.
type manyAct func(*desk.Desk, context.Context, desk.Act, desk.Bulk) (desk.Counts, error)

// run acts on what the flags select, and prints what came of it. Done is the
// word for success.
func (f *manyFlags) run(ctx context.Context, common *cli.Common, out *cli.Out, verb, done string, do manyAct) error {
	bulk, err := f.bulk()
	if err != nil {
		return err
	}
	act, err := f.act()
	if err != nil {
		return err
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		view := newCounter()
		defer view.End()
		var single error // of the only id
		t := newTable(out)
		if f.DryRun && !f.JSON {
			t.row("ID", "KIND", "REASON")
		}
		bulk.Each = func(i desk.Item, c desk.Counts) {
			view.Set(int64(c.Done+c.Already+c.Refused+c.Failed), int64(c.Matched)) // how many there are in all becomes known on the way
			name := i.ID
			if i.Key != "" {
				name = string(i.Key)
			}
			switch {
			case i.Err != nil && len(f.IDs) == 1:
				single = i.Err
			case i.Err != nil:
				fmt.Fprintf(view, "tallyman: %s %q: %v\n", verb, name, i.Err)
			case f.DryRun && !f.JSON:
				t.row(name, i.Kind, i.Reason)
			}
		}
		counts, err := do(deskOf(pool), ctx, act, bulk)
		view.End()
		if f.DryRun && !f.JSON {
			err = errors.Join(err, t.Flush())
		}
		if printed := printCounts(out, counts, done, f.JSON, f.DryRun); printed != nil {
			err = errors.Join(err, printed)
		}
		switch {
		case err != nil:
			return err
		case single != nil:
			return fmt.Errorf("%s %q: %w", verb, f.IDs[0], single)
		case counts.Failed > 0:
			return fmt.Errorf("%d of %d failed; %s them again, what is done stays done", counts.Failed, counts.Matched, verb)
		case counts.Refused > 0:
			return fmt.Errorf("%w: %d of %d do not admit %s", desk.ErrRefused, counts.Refused, counts.Matched, verb)
		}
		return nil
	})
}

func printCounts(out *cli.Out, c desk.Counts, done string, asJSON, dry bool) error {
	if asJSON {
		v := map[string]any{"matched": c.Matched, done: c.Done, "already": c.Already, "refused": c.Refused, "failed": c.Failed}
		if dry {
			v["dry_run"] = true
		}
		return out.JSON(v)
	}
	parts := []string{fmt.Sprintf("%d %s", c.Done, done)}
	if dry {
		parts = []string{fmt.Sprintf("%d would be %s", c.Matched-c.Already-c.Refused-c.Failed, done)}
	}
	for _, p := range []struct {
		n    int
		what string
	}{{c.Already, "already"}, {c.Refused, "refused"}, {c.Failed, "failed"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	_, err := fmt.Fprintf(out, "matched %d: %s\n", c.Matched, strings.Join(parts, ", "))
	return err
}

// newCounter shows on stderr how many commands were dealt with.
func newCounter() *bar.Bar {
	return bar.On(os.Stderr, 0,
		mpb.PrependDecorators(decor.CountersNoUnit("%d / %d")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageSpeed(0, "%.0f/s")),
	)
}

type requeueCommand struct{ manyFlags }

// Run sends parked commands back.
func (c *requeueCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return c.run(ctx, common, out, "requeue", "requeued", (*desk.Desk).RequeueMany)
}

type discardCommand struct{ manyFlags }

// Run gives parked commands up.
func (c *discardCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return c.run(ctx, common, out, "discard", "discarded", (*desk.Desk).DiscardMany)
}
