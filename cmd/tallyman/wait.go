package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

type waitCommand struct {
	ID      string        `arg:"" help:"Id of the command, as it was submitted. Put -- before one that begins with -."`
	Timeout time.Duration `help:"Give up after this long, with exit code 5; 0 for never." default:"0" placeholder:"D"`
	JSON    bool          `name:"json" help:"Print the receipt as JSON instead of the result as it is."`
}

// Run waits and prints the result, byte for byte, or the receipt.
func (c *waitCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		if c.Timeout > 0 {
			bounded, cancel := context.WithTimeout(ctx, c.Timeout)
			defer cancel()
			ctx = bounded
		}
		r, err := pool.Wait(ctx, c.ID)
		if c.Timeout > 0 && errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no outcome of %q within %v; tallyman why tells where it stands: %w", c.ID, c.Timeout, err)
		}
		if r.ID == "" { // no outcome
			return err
		}
		if c.JSON {
			return errors.Join(err, out.JSON(receiptOf(r)))
		}
		if err == nil {
			_, err = out.Write(r.Result)
		}
		return err
	})
}
