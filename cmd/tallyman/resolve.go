package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/desk"
)

type resolveCommand struct {
	ID          string  `arg:"" help:"Id of the command, as it was submitted. Put -- before one that begins with -."`
	Result      *string `xor:"result" help:"The result, as text; may be empty. Either this or --result-file." placeholder:"TEXT"`
	ResultFile  string  `xor:"result" help:"File that holds the result; - reads stdin." placeholder:"FILE"`
	ContentType string  `help:"Content type of the result." placeholder:"TYPE"`
	actFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Validate checks what the parser cannot.
func (c *resolveCommand) Validate() error {
	if c.Result == nil && c.ResultFile == "" {
		return errors.New("what is the result? give --result TEXT or --result-file FILE")
	}
	return nil
}

// Run makes what a person states the receipt of a parked command.
func (c *resolveCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	act, err := c.act()
	if err != nil {
		return err
	}
	result := desk.Result{ContentType: c.ContentType}
	if c.Result != nil {
		result.Body = []byte(*c.Result)
	} else if result.Body, err = readResult(ctx, c.ResultFile); err != nil {
		return err
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		done, err := deskOf(pool).Resolve(ctx, act, c.ID, result)
		if err != nil {
			return err
		}
		return printDone(out, c.JSON, c.ID, "resolved", done.Already, nil)
	})
}

// readResult reads no more than a receipt could ever hold.
func readResult(ctx context.Context, file string) ([]byte, error) {
	in := io.Reader(os.Stdin)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, cli.Usage(err)
		}
		defer f.Close()
		in = f
	}
	body, err := io.ReadAll(io.LimitReader(cli.Until(ctx, in), maxDecode+1))
	if err != nil {
		return nil, fmt.Errorf("resolve: read the result: %w", err)
	}
	return body, nil
}

// printDone tells what came of an act on one command.
func printDone(out *cli.Out, asJSON bool, id, what string, already bool, left error) error {
	if asJSON {
		v := map[string]any{"id": id, what: true, "already": already}
		if left != nil {
			v["left_in_stream"] = left.Error()
		}
		return out.JSON(v)
	}
	if already {
		what = "was " + what + " already"
	}
	_, err := fmt.Fprintf(out, "%s: %s\n", line(id), what)
	if err == nil && left != nil {
		_, err = fmt.Fprintf(os.Stderr, "tallyman: %q is not taken out of the stream (%v); the worker that gets it takes it out\n", id, left)
	}
	return err
}
