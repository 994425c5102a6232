package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/outbox"
)

type auditCommand struct {
	Close   bool   `help:"If the books balance, close them, so that receipts may expire."`
	Against string `help:"File of ids that were accepted, which must all be there: an id per line, or JSON lines as producer submit --json prints them; - reads stdin." placeholder:"FILE"`
	DB      string `name:"db" help:"Database with an outbox to audit too: postgres://..., sqlite:PATH or file:PATH. What it says was published must be in the pool." env:"TALLYMAN_DB" placeholder:"DSN"`
	OnlyDB  bool   `name:"only-db" help:"Every command of the pool comes from --db, or is a follow-up: others are findings."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Validate checks what the parser cannot.
func (c *auditCommand) Validate() error {
	switch {
	case c.DB != "" && c.Against != "":
		return errors.New("--db and --against each say what must be there: audit twice")
	case c.OnlyDB && c.DB == "":
		return errors.New("--only-db needs --db")
	}
	return nil
}

// Run audits the pool and prints the report, whatever it says.
func (c *auditCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	opts := audit.Options{Close: c.Close}
	if c.Against != "" {
		in, err := openList(c.Against)
		if err != nil {
			return cli.Usage(err)
		}
		defer in.Close()
		opts.Against = accepted(in)
	}
	var beside *outboxAudit
	if c.DB != "" {
		db, err := openOutbox(ctx, c.DB)
		if err != nil {
			return err
		}
		defer db.Close()
		beside = &outboxAudit{db, c.OnlyDB}
		opts.Against = beside.against(ctx)
	}
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		r, err := audit.Run(ctx, pool.Commands(), pool.Records(), opts)
		if err != nil {
			return err
		}
		if beside != nil {
			return c.finish(ctx, pool, r, beside, out)
		}
		if c.JSON {
			err = out.JSON(r)
		} else {
			err = printReport(r, out)
		}
		if err == nil && !r.Balanced {
			return fmt.Errorf("pool %q: %w: %s", pool.Name(), cli.ErrUnbalanced, strings.TrimPrefix(r.Summary(), cli.ErrUnbalanced.Error()+": "))
		}
		return err
	})
}

// finish audits the outbox beside the pool, and prints both reports.
func (c *auditCommand) finish(ctx context.Context, pool *tallyman.Pool, r audit.Report, beside *outboxAudit, out *cli.Out) error {
	db, err := beside.run(ctx, pool)
	if err != nil {
		return err
	}
	if c.JSON {
		err = out.JSON(struct {
			audit.Report
			Outbox outbox.Report `json:"outbox"`
		}{r, db})
	} else {
		err = errors.Join(printReport(r, out), printOutbox(db, out))
	}
	switch {
	case err != nil:
		return err
	case !r.Balanced:
		return fmt.Errorf("pool %q: %w: %s", pool.Name(), cli.ErrUnbalanced, strings.TrimPrefix(r.Summary(), cli.ErrUnbalanced.Error()+": "))
	case !db.Balanced:
		return fmt.Errorf("outbox: %w: %d findings, the first is %s: %q: %s", cli.ErrUnbalanced, db.FindingCount, db.Findings[0].Kind, db.Findings[0].ID, db.Findings[0].Detail)
	}
	return nil
}

func printReport(r audit.Report, out *cli.Out) error {
	t := newTable(out)
	t.row("last sequence", r.LastSeq)
	if r.ClosedThrough > 0 {
		t.row("closed through", r.ClosedThrough)
	}
	t.row("pending", r.Pending)
	t.row("completed", r.Completed)
	t.row("parked", r.Parked)
	t.row("cancelled", r.Cancelled)
	t.row("discarded", r.Discarded)
	t.row("absorbed", r.Absorbed)
	if r.MissingCount > 0 {
		t.row("missing", fmt.Sprintf("%d: %s", r.MissingCount, ranges(r.Missing)))
	}
	if r.DoubledCount > 0 {
		t.row("doubled", r.DoubledCount)
		for _, d := range r.Doubled {
			t.row("", fmt.Sprintf("%d: %q", d.Seq, d.IDs))
		}
	}
	if r.StrandedCount > 0 {
		t.row("stranded", fmt.Sprintf("%d: %q", r.StrandedCount, r.Stranded))
	}
	if r.CorruptCount > 0 {
		t.row("corrupt", fmt.Sprintf("%d: %q", r.CorruptCount, r.Corrupt))
	}
	if r.Beyond > 0 {
		t.row("beyond", fmt.Sprintf("sequence %d is on record; the stream was set back, or replaced, after that", r.Beyond))
	}
	if r.Compared > 0 {
		t.row("compared", r.Compared)
	}
	if r.MissingIDCount > 0 {
		t.row("missing ids", r.MissingIDCount)
		for _, m := range r.MissingIDs {
			t.row("", fmt.Sprintf("%q: %s", m.ID, m.Cause))
		}
	}
	t.row("")
	t.row(r.Summary())
	return t.Flush()
}

// ranges spells rising sequences for people: 1-3, 7.
func ranges(seqs []uint64) string {
	var b strings.Builder
	for i := 0; i < len(seqs); {
		j := i
		for j+1 < len(seqs) && seqs[j+1] == seqs[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, seqs[i])
		if j > i {
			fmt.Fprintf(&b, "-%d", seqs[j])
		}
		i = j + 1
	}
	return b.String()
}
