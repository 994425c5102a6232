package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/database"
	"github.com/tallyman-go/tallyman/outbox"
)

// ofOutbox names the database whose outbox it is about. No pool is asked.
type ofOutbox struct {
	DB string `name:"db" required:"" help:"Database with the outbox: postgres://..., sqlite:PATH or file:PATH." env:"TALLYMAN_DB" placeholder:"DSN"`
}

func (o *ofOutbox) open(ctx context.Context) (*database.Database, error) {
	db, err := database.Open(ctx, o.DB, false)
	if err != nil {
		return nil, err
	}
	if err := outbox.CheckSchema(ctx, db.DB, db.Dialect); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Failed is the command that lists failed rows.
type Failed struct {
	ofOutbox `embed:""`

	JSON bool `name:"json" help:"Print one JSON object per row."`
}

// failedRow is what --json prints.
type failedRow struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind"`
	Attempts  int       `json:"attempts"`
	CreatedAt time.Time `json:"created_at"`
	Error     string    `json:"error"`
	Behind    string    `json:"behind,omitempty"` // id of a row of the same order key that comes before
}

// Run lists the rows that wait for an operator, oldest first.
func (f *Failed) Run(ctx context.Context, out *cli.Out) error {
	db, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	n := 0
	for s, err := range outbox.Failed(ctx, db.DB, db.Dialect) {
		if err != nil {
			return err
		}
		if f.JSON {
			if err := out.JSON(failedRow{s.ID, s.Kind, s.Attempts, s.CreatedAt, s.Error, s.Behind}); err != nil {
				return err
			}
			continue
		}
		if n++; n == 1 {
			fmt.Fprintln(w, "ID\tKIND\tATTEMPTS\tADDED\tERROR")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", cell(s.ID), cell(s.Kind), s.Attempts, s.CreatedAt.Format(time.RFC3339), cell(s.Error))
	}
	if f.JSON {
		return nil
	}
	if n == 0 {
		fmt.Fprintln(w, "no row has failed for good")
	}
	return w.Flush()
}

// cell quotes what could not be printed as it is: a bad id may be why a row failed.
func cell(s string) string {
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` || s == "" {
		return quoted
	}
	return s
}

// failedRows names rows to decide about.
type failedRows struct {
	ofOutbox `embed:""`

	IDs []string `arg:"" optional:"" name:"id" help:"Ids of failed rows."`
	All bool     `help:"Every failed row."`
}

// Validate checks what the parser cannot.
func (f *failedRows) Validate() error {
	if (len(f.IDs) > 0) == f.All {
		return errors.New("give ids of failed rows, or --all; producer failed lists them")
	}
	return nil
}

// Retry is the command that has failed rows tried again.
type Retry struct {
	failedRows `embed:""`
}

// Run makes the rows pending again.
func (r *Retry) Run(ctx context.Context, out *cli.Out) error {
	return r.decide(ctx, out, outbox.Retry, "to be tried again")
}

// Discard is the command that removes failed rows.
type Discard struct {
	failedRows `embed:""`
}

// Run removes the rows.
func (d *Discard) Run(ctx context.Context, out *cli.Out) error {
	return d.decide(ctx, out, outbox.Discard, "discarded")
}

// decide does one act on each row, in a transaction of its own: on all that
// have failed if no ids are given. It goes on where one is not there, which of
// all of them is one that somebody else has decided about meanwhile.
func (f *failedRows) decide(ctx context.Context, out *cli.Out, act func(context.Context, outbox.Tx, string) error, done string) error {
	db, err := f.open(ctx)
	if err != nil {
		return err
	}
	defer db.Close()
	ids := f.IDs
	if f.All {
		for s, err := range outbox.Failed(ctx, db.DB, db.Dialect) {
			if err != nil {
				return err
			}
			ids = append(ids, s.ID)
		}
	}
	var failed []error
	for _, id := range ids {
		if ctx.Err() != nil {
			return errors.Join(append(failed, context.Cause(ctx))...)
		}
		switch err := act(ctx, db.Dialect.Tx(db.DB), id); {
		case err == nil:
		case !errors.Is(err, outbox.ErrNoRow):
			return errors.Join(append(failed, err)...)
		case f.All:
			continue
		default:
			failed = append(failed, err)
			continue
		}
		if _, err := fmt.Fprintf(out, "%s: %s\n", cell(id), done); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}
