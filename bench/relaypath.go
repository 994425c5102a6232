package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/outbox"
)

const (
	relayPath  = "relay" // from rows of a database to the command stream
	relayBatch = outbox.DefaultBatch
)

// fillOutbox adds n rows to a new database.
func fillOutbox(ctx context.Context, file string, n int) error {
	db, err := openCounted(file)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := outbox.Migrate(ctx, db, outbox.SQLite); err != nil {
		return err
	}
	return inBatches(ctx, commandsOf(n, 0), relayBatch, func(batch []Command) error {
		rows := make([]outbox.Command, len(batch))
		for i, c := range batch {
			rows[i] = outbox.Command{ID: c.ID, Kind: kindName, Payload: c.Payload}
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		return errors.Join(outbox.Add(ctx, outbox.SQLite.Tx(tx), rows...), tx.Commit())
	})
}

// unpublished counts the rows that are not marked as carried.
func unpublished(ctx context.Context, db *sql.DB) (n int, err error) {
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM tallyman_outbox WHERE available_at IS NOT NULL`).Scan(&n)
	return n, err
}

// relay carries all rows as a service has it done.
func (ours) relay(ctx context.Context, nc *nats.Conn, db *sql.DB) error {
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := outbox.NewRelay(outbox.Config{
		DB: db, Dialect: outbox.SQLite, Submitter: outbox.Via(pool.NewProducer(tallyman.ProducerConfig{})),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// sentBatch is a batch of rows on its way, up to the row with sequence last.
type sentBatch struct {
	first, last int64
	acks        []jetstream.PubAckFuture
}

// relay is the bound: it reads rows in batches, publishes them without waiting,
// and marks a batch with one statement once all of it is accepted. It claims
// nothing, so only one may run, and has no answer to any failure.
func (raw) relay(ctx context.Context, nc *nats.Conn, db *sql.DB) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		return err
	}
	sent := make(chan sentBatch, maxPending/relayBatch)
	marked := make(chan struct{})
	go func() {
		defer close(marked)
		for batch := range sent {
			if err := batch.mark(ctx, db); err != nil {
				fail(err)
			}
		}
	}()
	for last := int64(0); err == nil; {
		var batch sentBatch
		if batch, err = publishRows(ctx, js, db, last); err != nil || len(batch.acks) == 0 {
			break
		}
		last = batch.last
		select {
		case sent <- batch:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	close(sent)
	<-marked
	if err == nil {
		<-ctx.Done() // what is done stays done
		if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	return err
}

// publishRows sends the next batch of rows.
func publishRows(ctx context.Context, js jetstream.JetStream, db *sql.DB, after int64) (batch sentBatch, err error) {
	rows, err := db.QueryContext(ctx, `SELECT seq, id, kind, payload FROM tallyman_outbox WHERE seq > ? ORDER BY seq LIMIT ?`, after, relayBatch)
	if err != nil {
		return batch, err
	}
	defer rows.Close()
	for rows.Next() {
		var id, kind string
		var payload []byte
		if err := rows.Scan(&batch.last, &id, &kind, &payload); err != nil {
			return batch, err
		}
		if batch.first == 0 {
			batch.first = batch.last
		}
		ack, err := js.PublishMsgAsync(&nats.Msg{
			Subject: strings.Join([]string{poolName, "commands", queueName, kind, id}, "."),
			Header:  nats.Header{jetstream.MsgIDHeader: {id}}, Data: payload,
		}, jetstream.WithStallWait(time.Minute))
		if err != nil {
			return batch, fmt.Errorf("submit %s: %w", id, err)
		}
		batch.acks = append(batch.acks, ack)
	}
	return batch, rows.Err()
}

// mark waits until a batch is accepted and says so in its rows.
func (b sentBatch) mark(ctx context.Context, db *sql.DB) error {
	for _, ack := range b.acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return fmt.Errorf("submit %s: %w", ack.Msg().Subject, err)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	_, err := db.ExecContext(ctx, `UPDATE tallyman_outbox SET state = 'published', published_at = due_at, available_at = NULL WHERE seq BETWEEN ? AND ?`, b.first, b.last)
	return err
}

// relayer is a contestant that carries rows of an outbox.
type relayer interface {
	relay(ctx context.Context, nc *nats.Conn, db *sql.DB) error
}

// relayWork is what a relay's order asks for.
func relayWork(r relayer, o order) func(context.Context) error {
	return func(ctx context.Context) error {
		db, err := openCounted(o.DB)
		if err != nil {
			return err
		}
		defer db.Close()
		return connected(o.URL, func(nc *nats.Conn) error { return r.relay(ctx, nc, db) })
	}
}
