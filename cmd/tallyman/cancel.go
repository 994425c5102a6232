package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

type cancelCommand struct {
	IDs []string `arg:"" name:"id" help:"Ids of the commands, as they were submitted. Put -- before one that begins with -."`
	actFlags
	JSON bool `name:"json" help:"Print one JSON object per command."`
}

// Run cancels one command after the other.
func (c *cancelCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	act, err := c.act()
	if err != nil {
		return err
	}
	// Whoever may not delete cancels all the same, so a denial must not end the
	// context: this one is that of the process.
	return withPool(ctx, common, func(_ context.Context, pool *tallyman.Pool) error {
		d := deskOf(pool)
		var failed []error
		for _, id := range c.IDs {
			done, err := d.Cancel(ctx, act, id)
			if err != nil {
				failed = append(failed, err)
				if c.JSON {
					if err := out.JSON(map[string]any{"id": id, "cancelled": false, "error": err.Error()}); err != nil {
						return err
					}
				}
				if len(c.IDs) > 1 {
					fmt.Fprintf(os.Stderr, "tallyman: %s\n", cli.Text(err))
				}
				continue
			}
			if err := printDone(out, c.JSON, id, "cancelled", done.Already, done.Left); err != nil {
				return err
			}
		}
		if len(failed) > 0 && len(c.IDs) > 1 {
			return &someFailed{of: len(c.IDs), errs: failed}
		}
		return errors.Join(failed...)
	})
}

// someFailed sums up errors that were told one by one.
type someFailed struct {
	of   int
	errs []error
}

func (e *someFailed) Error() string {
	return fmt.Sprintf("%d of %d were not cancelled", len(e.errs), e.of)
}
func (e *someFailed) Unwrap() []error { return e.errs }
