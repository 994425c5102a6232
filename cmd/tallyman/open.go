package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// connected calls do with a connection. What the server denies reaches a
// client as an event of the connection alone, and the caller as a timeout; so
// the first denial ends the context of do, and is what connected returns.
func connected(ctx context.Context, common *cli.Common, do func(context.Context, *nats.Conn) error) error {
	nc, err := common.Connect("tallyman")
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel(fmt.Errorf("%w: %s", tallyman.ErrDenied, strings.TrimPrefix(err.Error(), "nats: ")))
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
	if err = do(ctx, nc); err == nil || errors.Is(err, tallyman.ErrDenied) {
		return err
	}
	if denied := context.Cause(ctx); errors.Is(denied, tallyman.ErrDenied) {
		return fmt.Errorf("%w; %w", err, denied)
	}
	return err
}

// withPool calls do with the opened pool.
func withPool(ctx context.Context, common *cli.Common, do func(context.Context, *tallyman.Pool) error) error {
	return connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		pool, err := common.Open(ctx, nc)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Close() }() // never fails
		return do(ctx, pool)
	})
}
