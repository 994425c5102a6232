package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/journal"
)

type auditCommand struct {
	Close   bool   `help:"If the books balance, close them, so that receipts may expire."`
	Against string `help:"File of ids that were accepted, which must all be there: an id per line, or JSON lines as producer submit --json prints them; - reads stdin." placeholder:"FILE"`
	Journal bool   `help:"Audit the pool's journal, too."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// Run audits the pool, and the journal if asked to, and prints the reports, whatever they say.
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
	return connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		pool, err := tallyman.Open(ctx, nc, common.Pool)
		if err != nil {
			return err
		}
		defer pool.Close()
		var full struct {
			audit.Report
			Journal *journal.Report `json:"journal,omitempty"`
		}
		if full.Report, err = audit.Run(ctx, pool.Commands(), pool.Records(), opts); err != nil {
			return err
		}
		if c.Journal {
			r, err := auditJournal(ctx, nc, pool, c.Close)
			if err != nil {
				return err
			}
			full.Journal = &r
		}
		if c.JSON {
			err = out.JSON(full)
		} else if err = printReport(full.Report, out); err == nil && full.Journal != nil {
			err = printJournal(*full.Journal, out)
		}
		if err != nil {
			return err
		}
		var amiss []string
		if !full.Balanced {
			amiss = append(amiss, strings.TrimPrefix(full.Summary(), cli.ErrUnbalanced.Error()+": "))
		}
		if full.Journal != nil && !full.Journal.Balanced {
			amiss = append(amiss, full.Journal.Summary())
		}
		if len(amiss) > 0 {
			return fmt.Errorf("pool %q: %w: %s", pool.Name(), cli.ErrUnbalanced, strings.Join(amiss, "; "))
		}
		return nil
	})
}

func auditJournal(ctx context.Context, nc *nats.Conn, pool *tallyman.Pool, closeBooks bool) (journal.Report, error) {
	j, err := journal.Open(ctx, nc, pool, journal.Options{})
	if err != nil {
		return journal.Report{}, err
	}
	defer func() { _ = j.Close() }() // never fails
	return journal.Audit(ctx, j, journal.AuditOptions{Close: closeBooks})
}

func printJournal(r journal.Report, out *cli.Out) error {
	t := newTable(out)
	t.row("")
	t.row("journal", fmt.Sprintf("%d decisions of %d runs", r.Decisions, r.Runs))
	t.row("published through", r.PublishedThrough)
	if r.ClosedThrough > 0 {
		t.row("closed through", r.ClosedThrough)
	}
	t.row("commands", r.Commands)
	t.row("unpublished", r.UnpublishedCount)
	for _, p := range r.Unpublished {
		t.row("", fmt.Sprintf("decision %d of run %q", p.Seq, p.Run))
	}
	t.row("refused", r.RefusedCount)
	for _, f := range r.Refused {
		t.row("", fmt.Sprintf("command %q of decision %d of run %q: %s as %s, under %s", f.ID, f.Seq, f.Run, f.State, f.Reason, f.Key))
	}
	for _, m := range r.Missing {
		what := "missing"
		if m.Other {
			what = "missing, its id stands for another command"
		}
		t.row("", fmt.Sprintf("command %q of decision %d of run %q: %s", m.ID, m.Seq, m.Run, what))
	}
	for _, g := range r.Gaps {
		t.row("", fmt.Sprintf("run %q: decision %d where %d was to come, at sequence %d", g.Run, g.Got, g.Want, g.StreamSeq))
	}
	for _, d := range r.Damaged {
		t.row("", fmt.Sprintf("sequence %d, of run %s, is damaged: %s", d.StreamSeq, d.Token, d.Error))
	}
	t.row("")
	t.row(r.Summary())
	return t.Flush()
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
