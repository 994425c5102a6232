package main

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/journal"
)

func auditJournal(ctx context.Context, nc *nats.Conn, pool *tallyman.Pool, seal bool) (journal.Report, error) {
	j, err := journal.Open(ctx, nc, pool, journal.Options{})
	if err != nil {
		return journal.Report{}, err
	}
	defer func() { _ = j.Close() }() // never fails
	r, err := journal.Audit(ctx, j, journal.AuditOptions{Seal: seal})
	for i := range r.Refused { // what belongs to the pool as a whole lies in its first shard
		r.Refused[i].Key = desk.Key(0, len(pool.Shards()), command.Token(r.Refused[i].Key))
	}
	return r, err
}

func printJournal(r journal.Report, out *cli.Out) error {
	t := newTable(out)
	t.row("")
	t.row("journal", plural.Count(r.Decisions, "decision")+" of "+plural.Count(r.Runs, "run"))
	t.row("published through", r.PublishedThrough)
	if r.SealedThrough > 0 {
		t.row("sealed through", r.SealedThrough)
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
