package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/outbox"
)

type auditCommand struct {
	Seal    bool          `help:"If the books balance, seal them up to the first command that waits, so that receipts may expire."`
	Every   time.Duration `help:"Audit again at this interval, such as 1m, until a signal ends it; a report per round." placeholder:"D"`
	Against string        `help:"File of ids that were accepted, which must all be there: an id per line, or JSON lines as producer submit --json prints them; - reads stdin." placeholder:"FILE"`
	Journal bool          `help:"Audit the pool's journal, too."`
	DB      string        `name:"db" help:"Database with an outbox to audit, too: postgres://..., sqlite:PATH or file:PATH. What it says was published must be in the pool." placeholder:"DSN"`
	OnlyDB  bool          `name:"only-db" help:"Every command of the pool comes from --db, or is a follow-up: others are findings."`
	JSON    bool          `name:"json" help:"Print JSON; with --every, a line per round."`
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

// accounts is what one audit found.
type accounts struct {
	audit.Report
	Journal *journal.Report `json:"journal,omitempty"`
	Outbox  *outbox.Report  `json:"outbox,omitempty"`
}

// Run audits the pool, and the journal if asked to, and prints the reports, whatever they say.
func (c *auditCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	if c.Every != 0 {
		return c.rounds(ctx, common, out)
	}
	a, err := c.audit(ctx, common)
	if err != nil {
		return err
	}
	if err := c.print(a, out); err != nil {
		return err
	}
	return a.verdict(common)
}

// audit makes one report.
func (c *auditCommand) audit(ctx context.Context, common *cli.Common) (a accounts, err error) {
	opts := audit.Options{Seal: c.Seal}
	if c.Against != "" {
		in, err := openList(c.Against)
		if err != nil {
			return a, cli.Usage(err)
		}
		defer in.Close()
		opts.Against = accepted(cli.Until(ctx, in))
	}
	var beside *outboxAudit
	if c.DB != "" {
		if beside, err = openOutbox(ctx, c.DB, c.OnlyDB); err != nil {
			return a, err
		}
		defer beside.Close()
		opts.Against = beside.against(ctx)
	}
	err = connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		pool, err := common.Open(ctx, nc)
		if err != nil {
			return err
		}
		defer pool.Close()
		// The books may balance and yet be about to lose something.
		altered, err := pool.Altered(ctx)
		if err != nil {
			return err
		}
		for _, text := range altered {
			common.Logger().Warn("another tool has altered the pool", "pool", common.Pool, "what", text)
		}
		if a.Report, err = auditPool(ctx, common, nc, pool, opts); err != nil {
			return err
		}
		if beside != nil {
			r, err := beside.run(ctx, pool)
			if err != nil {
				return err
			}
			a.Outbox = &r
		}
		if !c.Journal {
			return nil
		}
		r, err := auditJournal(ctx, nc, pool, c.Seal)
		a.Journal = &r
		return err
	})
	return a, err
}

func (c *auditCommand) print(a accounts, out *cli.Out) error {
	if c.JSON {
		return out.JSON(a)
	}
	if err := printReport(a.Report, out); err != nil {
		return err
	}
	if a.Outbox != nil {
		if err := printOutbox(*a.Outbox, out); err != nil {
			return err
		}
	}
	if a.Journal == nil {
		return nil
	}
	return printJournal(*a.Journal, out)
}

// verdict is how the command ends after a report; nil if everything balances.
func (a accounts) verdict(common *cli.Common) error {
	var amiss []string
	if !a.Balanced {
		amiss = append(amiss, strings.TrimPrefix(a.Summary(), cli.ErrUnbalanced.Error()+": "))
	}
	if a.Outbox != nil && !a.Outbox.Balanced {
		amiss = append(amiss, a.Outbox.Summary())
	}
	if a.Journal != nil && !a.Journal.Balanced {
		amiss = append(amiss, a.Journal.Summary())
	}
	if len(amiss) == 0 {
		return nil
	}
	return fmt.Errorf("pool %q: %w: %s", common.Pool, cli.ErrUnbalanced, strings.Join(amiss, "; "))
}

func printReport(r audit.Report, out *cli.Out) error {
	t := newTable(out)
	if n := len(r.Shards); n > 0 {
		t.row("shards", n)
		t.row("sequences", r.LastSeq)
		t.row("sealed", r.SealedThrough)
	} else {
		t.row("last sequence", r.LastSeq)
		if r.SealedThrough > 0 {
			t.row("sealed through", r.SealedThrough)
		}
	}
	t.row("pending", r.Pending)
	t.row("completed", r.Completed)
	t.row("parked", r.Parked)
	t.row("cancelled", r.Cancelled)
	t.row("discarded", r.Discarded)
	t.row("absorbed", r.Absorbed)
	for _, c := range []struct {
		name  string
		count uint64
		which string
	}{
		{"missing", r.MissingCount, ": " + ranges(r.Missing)},
		{"doubled", r.DoubledCount, ""},
		{"stranded", r.StrandedCount, ""},
		{"corrupt", r.CorruptCount, ""},
		{"misplaced", r.MisplacedCount, ""},
		{"lingering", r.LingeringCount, ": " + ranges(r.Lingering)},
	} {
		if c.count > 0 {
			if len(r.Shards) > 0 { // whose sequences these are, the findings tell
				c.which = ""
			}
			t.row(c.name, fmt.Sprint(c.count)+c.which)
		}
	}
	if r.Beyond > 0 && len(r.Shards) == 0 {
		t.row("beyond", fmt.Sprintf("sequence %d is on record; the stream was set back, or replaced, after that", r.Beyond))
	}
	if r.Compared > 0 {
		t.row("compared", r.Compared)
	}
	if r.MissingIDCount > 0 {
		t.row("missing ids", r.MissingIDCount)
		for _, m := range r.MissingIDs {
			where := ""
			if m.Shard != nil {
				where = fmt.Sprintf(" in shard %d", *m.Shard)
			}
			t.row("", fmt.Sprintf("%q%s: %s", m.ID, where, m.Cause))
		}
		if n := r.MissingIDCount - uint64(len(r.MissingIDs)); n > 0 {
			t.row("", fmt.Sprintf("and %d more", n))
		}
	}
	t.row("")
	if err := t.Flush(); err != nil {
		return err
	}
	for _, text := range findings(r) {
		if _, err := fmt.Fprintln(out, line(text)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(out, r.Summary())
	return err
}

// findings spells the findings of a report in a line each. Sequences that
// nothing more is known of, with the same cause, share one.
func findings(r audit.Report) (lines []string) {
	for i := 0; i < len(r.Findings); {
		f, j := r.Findings[i], i+1
		seqs := []uint64{f.Seq}
		for ; j < len(r.Findings); j++ {
			g := r.Findings[j]
			seqs = append(seqs, g.Seq)
			if g.Seq = f.Seq; f.ID != "" || f != g {
				seqs = seqs[:len(seqs)-1]
				break
			}
		}
		if j > i+1 {
			lines = append(lines, fmt.Sprintf("%s%s sequences %s: %s; %s", f.What, f.Where(), ranges(seqs), f.Cause, f.Remedy))
		} else {
			lines = append(lines, f.String())
		}
		i = j
	}
	if n := r.FindingCount - uint64(len(r.Findings)); n > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", n))
	}
	return lines
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
