package pgxtx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/tallyman-go/tallyman/outbox"
)

// Executor is what a transaction of pgx has: pgx.Tx.
type Executor interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// Wrap returns the caller's transaction for the functions of package outbox.
func Wrap(tx Executor) outbox.Tx { return wrapped{tx} }

type wrapped struct{ tx Executor }

func (w wrapped) Dialect() outbox.Dialect { return outbox.Postgres }

func (w wrapped) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := w.tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (w wrapped) QueryRow(ctx context.Context, query string, args ...any) outbox.Row {
	return w.tx.QueryRow(ctx, query, args...)
}
