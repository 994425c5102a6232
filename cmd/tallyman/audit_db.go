package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/database"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/outbox"
)

// outboxAudit audits an outbox beside its pool.
type outboxAudit struct {
	*database.Database
	whole bool // every command of the pool comes from this database
}

// openOutbox opens a database that has the tables of an outbox.
func openOutbox(ctx context.Context, dsn string, whole bool) (*outboxAudit, error) {
	db, err := database.Open(ctx, dsn, false)
	if err != nil {
		return nil, err
	}
	if err := outbox.CheckSchema(ctx, db.DB, db.Dialect); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &outboxAudit{db, whole}, nil
}

// against lists what the outbox says that the pool has.
func (o *outboxAudit) against(ctx context.Context) iter.Seq2[audit.Accepted, error] {
	return func(yield func(audit.Accepted, error) bool) {
		for id, err := range outbox.Published(ctx, o.DB, o.Dialect) {
			if !yield(audit.Accepted{ID: id}, err) || err != nil {
				return
			}
		}
	}
}

// run audits the outbox itself.
func (o *outboxAudit) run(ctx context.Context, pool *tallyman.Pool) (outbox.Report, error) {
	r, err := outbox.Audit(ctx, o.DB, o.Dialect, pool, pool.Settings().Retention)
	if err != nil || !o.whole {
		return r, err
	}
	strangers, err := o.strangers(ctx, pool)
	if err != nil {
		return r, err
	}
	for _, id := range slices.Sorted(maps.Keys(strangers)) {
		r.Add(outbox.Finding{Kind: outbox.ReceiptWithoutRow, ID: id, Detail: fmt.Sprintf("the pool has it as %s, and no row asked for it", strangers[id])})
	}
	return r, nil
}

// strangers are the commands on record of which no row knows, and which no
// other command asked for.
func (o *outboxAudit) strangers(ctx context.Context, pool *tallyman.Pool) (map[string]kvstate.State, error) {
	strangers := map[string]kvstate.State{}
	seen := map[string]kvstate.State{}
	look := func() error {
		unknown, err := outbox.Unknown(ctx, o.DB, o.Dialect, slices.Collect(maps.Keys(seen)))
		for _, id := range unknown {
			strangers[id] = seen[id]
		}
		clear(seen)
		return err
	}
	err := scan(ctx, pool, func(_ int, e kvstate.Entry) error {
		if e.Record == nil || kvstate.Own(e.Key) {
			return nil
		}
		if seen[e.Record.ID] = e.Record.State; len(seen) < 1000 {
			return nil
		}
		return look()
	})
	if err == nil {
		err = look()
	}
	if err != nil || len(strangers) == 0 {
		return nil, err
	}
	err = scan(ctx, pool, func(_ int, e kvstate.Entry) error {
		if e.Record != nil {
			for _, f := range e.Record.FollowUps {
				delete(strangers, f.ID)
			}
		}
		return nil
	})
	return strangers, err
}

func printOutbox(r outbox.Report, out *cli.Out) error {
	t := newTable(out)
	t.row("")
	for _, state := range []string{"pending", "sending", "published", "failed"} {
		t.row("rows "+state, r.Rows[state])
	}
	t.row("settled", r.Settled)
	t.row("events with commands", r.Events)
	if r.Unprovable > 0 {
		t.row("too old to prove", r.Unprovable)
	}
	for _, f := range r.Findings {
		t.row(f.Kind, fmt.Sprintf("%q: %s", f.ID, f.Detail))
	}
	t.row("findings", r.FindingCount)
	return t.Flush()
}
