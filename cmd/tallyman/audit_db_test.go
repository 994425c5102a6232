package main

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/stream"
)

func TestAudit_BesideAnOutbox(t *testing.T) {
	t.Parallel()
	for _, shards := range []string{"1", "3"} {
		t.Run("shards "+shards, func(t *testing.T) {
			t.Parallel()
			auditBesideAnOutbox(t, shards)
		})
	}
}

func auditBesideAnOutbox(t *testing.T, shards string) {
	t.Helper()
	s := newScene(t)
	s.run(t, "init", "--shards", shards).expect(t, 0)
	p := s.pool(t)
	ctx := t.Context()
	dsn := "sqlite:" + filepath.Join(t.TempDir(), "app.db")
	s.run(t, "audit", "--db", dsn).expect(t, 2, "there is no file")
	s.run(t, "audit", "--db", dsn, "--against", "x").expect(t, 2, "audit twice")
	s.run(t, "audit", "--only-db").expect(t, 2, "--only-db needs --db")

	db, err := sql.Open("sqlite", "file:"+dsn[len("sqlite:"):]+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing is lost with it
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(ctx, query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE mine (x)`)
	s.run(t, "audit", "--db", dsn).expect(t, 1, "create them with")
	if err := outbox.Migrate(ctx, db, outbox.SQLite); err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(outbox.CommitDecision(ctx, outbox.SQLite.Tx(tx), "trip", 0,
		[]outbox.Event{{Kind: "k", CommandID: "a"}, {Kind: "k", CommandID: "b"}},
		[]outbox.Command{{ID: "a", Kind: "echo"}, {ID: "b", Kind: "wait"}}), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	s.run(t, "why", "a").expect(t, 1, "not found")
	s.run(t, "why", "a", "--db", dsn).expect(t, 0, "a is outbox_pending", `with event 1 of run "trip"`, "a relay has to run")
	relay, err := outbox.NewRelay(outbox.Config{DB: db, Dialect: outbox.SQLite, Submitter: outbox.Via(p.NewProducer(tallyman.ProducerConfig{})), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, c.FollowUp(tallyman.Command{Kind: "wait"})
	}))
	mux.Handle("wait", tallyman.HandlerFunc(func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
		<-ctx.Done()
		return tallyman.Result{}, context.Cause(ctx)
	}))
	w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Drain: -1})
	if err != nil {
		t.Fatal(err)
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(working) }()
	go func() { ended <- w.Run(working) }()
	if _, err := p.Wait(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	for relay.Stats().Published < 2 {
		if _, err := p.States(ctx, []string{"a"}); err != nil { // takes its time
			t.Fatal(err)
		}
	}
	stop()
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Fatal(err)
	}

	s.run(t, "audit", "--db", dsn, "--only-db").expect(t, 0, "rows published", "all 2 ids of the list")
	s.run(t, "why", "a", "--db", dsn).expect(t, 0, "a is completed", "Its row was added to the outbox", "marked its row as published, on claim 1", "Completed, and final.")
	o := s.run(t, "audit", "--db", dsn, "--json")
	o.expect(t, 0)
	equal(t, o.object(t)["outbox"].(map[string]any), "finding_count", "0")
	equal(t, o.object(t)["outbox"].(map[string]any), "events", "2")

	// One that no row asked for, and that is older than receipts are kept, may be a
	// follow-up whose parent is not on record any more.
	long := time.Now().Add(-8 * 24 * time.Hour)
	if _, err := p.RecordsOf("old").WriteWait(ctx, "old", &kvstate.Record{ID: "old", Kind: "echo", Queue: "default", State: kvstate.Parked, Trail: []kvstate.Step{{State: kvstate.Parked, At: long}}}); err != nil {
		t.Fatal(err)
	}
	o = s.run(t, "audit", "--db", dsn, "--only-db", "--json")
	o.expect(t, 0)
	equal(t, o.object(t)["outbox"].(map[string]any), "unprovable", "1")

	// A completed command of which no row knows. Its follow-up is nobody's row, and rightly so.
	exec(`DELETE FROM tallyman_outbox WHERE id = 'a'`)
	s.run(t, "audit", "--db", dsn).expect(t, 0) // its event has its receipt
	s.run(t, "audit", "--db", dsn, "--only-db").expect(t, 6, "receipt_without_row", `"a": the pool has it as completed`)

	// What was published is gone from the stream.
	str, err := s.js(t).Stream(ctx, stream.Name("main"))
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	exec(`INSERT INTO tallyman_outbox (id, queue, kind, content_type, payload, digest, state, due_at, published_at) VALUES ('lost', 'default', 'k', '', x'', '', 'published', 1, 1)`)
	s.run(t, "audit", "--db", dsn).expect(t, 6, `"lost"`)
	s.run(t, "why", "lost", "--db", dsn).expect(t, 0, "it was lost")

	// A row that failed holds up those of its key, whatever relays do.
	for i, c := range []struct{ id, state, at string }{{"first", "failed", "NULL"}, {"second", "pending", "1"}, {"later", "failed", "4102444800000000"}} {
		key := []string{"'key'", "'key'", "NULL"}[i]
		exec(`INSERT INTO tallyman_outbox (id, queue, kind, content_type, payload, digest, state, due_at, order_key, available_at) VALUES ('` + c.id + `', 'default', 'k', '', x'', '', '` + c.state + `', 1, ` + key + `, ` + c.at + `)`)
	}
	s.run(t, "why", "first", "--db", dsn).expect(t, 0, "no relay tries any more", "producer retry")
	s.run(t, "why", "second", "--db", dsn).expect(t, 0, `waits in the outbox behind "first"`)
	s.run(t, "why", "later", "--db", dsn).expect(t, 0, "tries again from 00:00:00 UTC on")
}
