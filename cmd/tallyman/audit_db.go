package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

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
	keep := pool.Settings().Retention
	r, err := outbox.Audit(ctx, o.DB, o.Dialect, pool, keep)
	if err != nil || !o.whole {
		return r, err
	}
	strangers, err := o.strangers(ctx, pool)
	if err != nil {
		return r, err
	}
	for _, id := range slices.Sorted(maps.Keys(strangers)) {
		s := strangers[id]
		// The receipt of a parent expires before its follow-up does, long before if
		// that is parked. So what is not new may be a follow-up of what has expired.
		if keep > 0 && time.Since(s.since) > keep/2 {
			r.Unprovable++
			continue
		}
		r.Add(outbox.Finding{Kind: outbox.ReceiptWithoutRow, ID: id, Detail: fmt.Sprintf("the pool has it as %s, and no row asked for it", s.state)})
	}
	return r, nil
}

// stranger is a command on record.
type stranger struct {
	state kvstate.State
	since time.Time // of the first step that its record knows
}

func strangerOf(r *kvstate.Record) stranger {
	s := stranger{r.State, r.StoredAt}
	if len(r.Trail) > 0 {
		s.since = r.Trail[0].At
	}
	return s
}

// strangers are the commands on record of which no row knows, and which no
// other command asked for.
func (o *outboxAudit) strangers(ctx context.Context, pool *tallyman.Pool) (map[string]stranger, error) {
	strangers := map[string]stranger{}
	seen := map[string]stranger{}
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
		if seen[e.Record.ID] = strangerOf(e.Record); len(seen) < 1000 {
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
