package tallyman

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// ReshardUntil is Reshard that ends with what at returns at one of its points.
func ReshardUntil(ctx context.Context, nc *nats.Conn, pool string, shards int, by string, at func(point, id string) error) (Resharded, error) {
	return reshard(ctx, nc, pool, shards, by, 0, at)
}

// ReshardTrusting is ReshardUntil that lets the given time pass once the mark is stored.
func ReshardTrusting(ctx context.Context, nc *nats.Conn, pool string, shards int, by string, accord time.Duration, at func(point, id string) error) (Resharded, error) {
	return reshard(ctx, nc, pool, shards, by, accord, at)
}
