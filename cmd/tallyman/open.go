package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// connected calls do with a connection. The first denial of the server ends the
// context of do, and is what connected returns if do fails.
func connected(ctx context.Context, common *cli.Common, do func(context.Context, *nats.Conn) error) error {
	nc, err := common.Connect("tallyman")
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, stop := cli.UntilDenied(ctx, nc)
	defer stop()
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
