package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"
)

// Claim is what the inbox needs of a claim; *tallyman.Claim has it.
type Claim interface {
	ID() string
	Token() uint64
}

// entry is the row of a command in the inbox.
type entry struct {
	token, offset uint64
	result        []byte
	done          bool
}

var (
	enter       = statementOf(`INSERT INTO tallyman_inbox (id, token) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`)
	selectEntry = statementsOf(
		`SELECT token, processed_offset, result, done_at IS NOT NULL FROM tallyman_inbox WHERE id = $1`,
		// The row is kept from others until the transaction ends.
		`SELECT token, processed_offset, result, done_at IS NOT NULL FROM tallyman_inbox WHERE id = $1 FOR UPDATE`)
	raiseToken = statementOf(`UPDATE tallyman_inbox SET token = $2 WHERE id = $1 AND token < $2`)
	finish     = statementOf(`UPDATE tallyman_inbox SET result = $3, done_at = {now} WHERE id = $1 AND token = $2 AND done_at IS NULL`)
	moveOffset = statementOf(`UPDATE tallyman_inbox SET processed_offset = $4
		WHERE id = $1 AND token = $2 AND processed_offset = $3 AND done_at IS NULL`)
	forget = statementOf(`DELETE FROM tallyman_inbox WHERE id IN
		(SELECT id FROM tallyman_inbox WHERE done_at < {after $1} ORDER BY done_at LIMIT $2)`)
)

// Once runs fn at most once, to a commit, for a command: what fn writes with
// the caller's transaction and the mark that the command was processed commit
// together. If the command was processed before, fn is not called, and the
// stored result is returned with repeated set.
//
// A claim whose token is lower than one that was here before gets ErrLeaseLost.
// After any error, that of fn included, the transaction must be rolled back;
// then nothing has happened, and the command may come again.
func Once(ctx context.Context, tx Tx, claim Claim, fn func(context.Context) ([]byte, error)) (result []byte, repeated bool, err error) {
	e, err := admit(ctx, tx, claim)
	if err != nil {
		return nil, false, fmt.Errorf("outbox: once %q: %w", claim.ID(), err)
	}
	if e.done {
		return e.result, true, nil
	}
	if result, err = fn(ctx); err != nil {
		return nil, false, err
	}
	if result == nil {
		result = []byte{}
	}
	n, err := tx.Exec(ctx, finish.in(tx.Dialect()), claim.ID(), int64(e.token), result)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: its row was changed by someone else; roll back and stop", ErrLeaseLost)
	}
	if err != nil {
		return nil, false, fmt.Errorf("outbox: once %q: %w", claim.ID(), err)
	}
	return result, false, nil
}

// Advance runs fn for one batch of a command that works through many: what fn
// writes commits together with the offset, which moves from one value to the
// next. Read where to go on with Offset. ErrMoved, which matches ErrLeaseLost,
// means that the offset is another one by now, or the command is done: someone
// else has been here. Roll back after any error, and stop after this one.
func Advance(ctx context.Context, tx Tx, claim Claim, from, to uint64, fn func(context.Context) error) error {
	if to < from || to > math.MaxInt64 {
		return fmt.Errorf("outbox: advance %q from %d to %d: %w, and has 63 bits", claim.ID(), from, to, ErrBackwards)
	}
	e, err := admit(ctx, tx, claim)
	if err != nil {
		return fmt.Errorf("outbox: advance %q: %w", claim.ID(), err)
	}
	// The offset moves before fn runs, so that of two that meet here one waits
	// and then finds it moved.
	n, err := tx.Exec(ctx, moveOffset.in(tx.Dialect()), claim.ID(), int64(e.token), int64(from), int64(to))
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: it is %d (done: %t), not %d; roll back and stop", ErrMoved, e.offset, e.done, from)
	}
	if err != nil {
		return fmt.Errorf("outbox: advance %q: %w", claim.ID(), err)
	}
	return fn(ctx)
}

// Offset returns where Advance is to go on: 0 if the command was never here.
// It may be further on than Claim.Offset, and is then the one that counts.
func Offset(ctx context.Context, tx Tx, claim Claim) (uint64, error) {
	var e entry
	err := tx.QueryRow(ctx, selectEntry.in(tx.Dialect()), claim.ID()).Scan(&e.token, &e.offset, &e.result, &e.done)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("outbox: offset of %q: %w", claim.ID(), err)
	}
	if claim.Token() < e.token {
		return 0, fmt.Errorf("outbox: offset of %q: %w", claim.ID(), staleToken(claim.Token(), e.token))
	}
	return e.offset, nil
}

// Forget removes at most limit entries of commands that were done longer ago
// than keep, and returns how many it removed. Keep must not be shorter than
// the pool keeps receipts, or a repeated command would be processed again.
func Forget(ctx context.Context, tx Tx, keep time.Duration, limit int) (int64, error) {
	n, err := tx.Exec(ctx, forget.in(tx.Dialect()), -keep.Microseconds(), limit)
	if err != nil {
		return 0, fmt.Errorf("outbox: forget: %w", err)
	}
	return n, nil
}

// admit enters the command, or finds its entry and holds the claim's token
// against it. From then on the entry is the caller's until the transaction ends.
func admit(ctx context.Context, tx Tx, claim Claim) (entry, error) {
	token := claim.Token()
	if token > math.MaxInt64 {
		return entry{}, fmt.Errorf("token %d has more than 63 bits", token)
	}
	d := tx.Dialect()
	n, err := tx.Exec(ctx, enter.in(d), claim.ID(), int64(token))
	if err != nil {
		return entry{}, err
	}
	if n == 1 {
		return entry{token: token}, nil
	}
	var e entry
	if err := tx.QueryRow(ctx, selectEntry.in(d), claim.ID()).Scan(&e.token, &e.offset, &e.result, &e.done); err != nil {
		return entry{}, err
	}
	switch {
	case token < e.token:
		return entry{}, staleToken(token, e.token)
	case token > e.token && !e.done:
		if _, err := tx.Exec(ctx, raiseToken.in(d), claim.ID(), int64(token)); err != nil {
			return entry{}, err
		}
		e.token = token
	}
	return e, nil
}

func staleToken(token, seen uint64) error {
	return fmt.Errorf("%w: token %d came after token %d; roll back and stop", ErrLeaseLost, token, seen)
}
