package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tallyman-go/tallyman/command"
)

// Channel is where Add notifies the relays on PostgreSQL.
const Channel = "tallyman_outbox"

// maxInsert bounds the rows of one INSERT; it is a power of two.
const maxInsert = 256

// insertColumns are those of a row that Add fills in.
var insertColumns = []string{
	"id", "queue", "kind", "content_type", "payload", "digest", "not_after", "order_key", "run_id", "event_seq", "available_at", "due_at",
}

// inserts holds the INSERT of 1, 2, 4, ... maxInsert rows, so that a driver
// meets few texts and keeps them prepared.
var inserts = func() map[int]statement {
	all := make(map[int]statement)
	for n := 1; n <= maxInsert; n *= 2 {
		var rows []string
		for i := range n {
			p := func(k int) string { return "$" + strconv.Itoa(i*insertParams+k) }
			rows = append(rows, "("+strings.Join([]string{
				p(1), p(2), p(3), p(4), p(5), p(6), "{time " + p(7) + "}", p(8), p(9), "{integer " + p(10) + "}",
				"coalesce({time " + p(11) + "}, {now})", "coalesce({time " + p(11) + "}, {now})",
			}, ", ")+")")
		}
		insert := "INSERT INTO tallyman_outbox (" + strings.Join(insertColumns, ", ") + ") VALUES " + strings.Join(rows, ", ") + " ON CONFLICT (id) DO NOTHING"
		// PostgreSQL tells the relays in the same round trip; the notification
		// leaves with the commit, and not without it.
		all[n] = statementsOf(insert,
			"WITH added AS ("+insert+" RETURNING 1) SELECT count(*), CASE WHEN count(*) > 0 THEN pg_notify('"+Channel+"', '')::text END FROM added")
	}
	return all
}()

const insertParams = 11

var selectIdentity = statementOf(`SELECT kind, queue, digest FROM tallyman_outbox WHERE id = $1`)

// Add writes command intents into the caller's transaction: they are submitted
// if it commits, and never existed if it does not. Many commands take one
// statement for up to 256 of them.
//
// A command whose id is in the outbox already, with the same kind, payload and
// queue, is absorbed: its row stays as it is. So is a command that is given
// twice. After an error the transaction must be rolled back.
//
// Errors: ErrConflict if an id stands for another kind, payload or queue;
// ErrInvalidID, ErrInvalidName, in which case nothing was written.
func Add(ctx context.Context, tx Tx, commands ...Command) error {
	envs := make([]command.Envelope, len(commands))
	for i, c := range commands {
		var err error
		if envs[i], err = c.identify(); err != nil {
			return fmt.Errorf("outbox: add: %w", err)
		}
	}
	for len(commands) > 0 {
		n := maxInsert
		for n > len(commands) {
			n /= 2
		}
		if err := add(ctx, tx, commands[:n], envs[:n]); err != nil {
			return err
		}
		commands, envs = commands[n:], envs[n:]
	}
	return nil
}

func add(ctx context.Context, tx Tx, commands []Command, envs []command.Envelope) error {
	// A row that is in the way may be swept between the two looks at it.
	for range 3 {
		added, err := insert(ctx, tx, commands, envs)
		if err != nil {
			return fmt.Errorf("outbox: add %q: %w", envs[0].ID, err)
		}
		if added == int64(len(commands)) {
			return nil
		}
		gone := false
		for _, env := range envs {
			there, err := compare(ctx, tx, env)
			if err != nil {
				return err
			}
			gone = gone || !there
		}
		if !gone {
			return nil
		}
	}
	return fmt.Errorf("outbox: add %q: its row comes and goes; try the transaction again", envs[0].ID)
}

func insert(ctx context.Context, tx Tx, commands []Command, envs []command.Envelope) (added int64, err error) {
	d := tx.Dialect()
	args := make([]any, 0, len(commands)*insertParams)
	for i, c := range commands {
		env := envs[i]
		payload := env.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		var eventSeq any
		if c.eventSeq > 0 {
			eventSeq = int64(c.eventSeq)
		}
		args = append(args, env.ID, env.Queue, env.Kind, env.ContentType, payload, string(env.Digest),
			d.time(c.NotAfter), text(c.OrderKey), text(c.run), eventSeq, d.time(c.NotBefore))
	}
	if d == SQLite {
		return tx.Exec(ctx, inserts[len(commands)].in(d), args...)
	}
	var notified sql.NullString
	err = tx.QueryRow(ctx, inserts[len(commands)].in(d), args...).Scan(&added, &notified)
	return added, err
}

// compare holds a command against the row that has its id.
func compare(ctx context.Context, tx Tx, env command.Envelope) (there bool, err error) {
	var kind, queue, digest string
	err = tx.QueryRow(ctx, selectIdentity.in(tx.Dialect()), env.ID).Scan(&kind, &queue, &digest)
	const remedy = "an id names one act, use another"
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("outbox: add %q: %w", env.ID, err)
	case kind != env.Kind:
		return true, fmt.Errorf("outbox: add %q: %w: the id stands for a command of kind %q, this one is of kind %q; %s", env.ID, ErrConflict, kind, env.Kind, remedy)
	case digest != string(env.Digest):
		return true, fmt.Errorf("outbox: add %q: %w: the id stands for a command with another payload (digest %s, this one has %s); %s", env.ID, ErrConflict, digest, env.Digest, remedy)
	case queue != env.Queue:
		return true, fmt.Errorf("outbox: add %q: %w: the id stands for a command of queue %q, this one is for %q; %s", env.ID, ErrConflict, queue, env.Queue, remedy)
	}
	return true, nil
}
