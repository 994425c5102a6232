package main

import (
	"context"
	"strings"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
)

// sharded reports whether the pool has more than one shard, so that what is
// printed has to say which.
func sharded(pool *tallyman.Pool) bool { return len(pool.Shards()) > 1 }

// deskOf returns the desk of all shards.
func deskOf(pool *tallyman.Pool) *desk.Desk {
	var desks []*desk.Desk
	for _, s := range pool.Shards() {
		desks = append(desks, desk.New(s.Commands, s.Records))
	}
	return desk.Sharded(desks...)
}

// auditPool audits all shards.
func auditPool(ctx context.Context, pool *tallyman.Pool, opts audit.Options) (audit.Report, error) {
	var shards []audit.Shard
	for _, s := range pool.Shards() {
		shards = append(shards, audit.Shard{Commands: s.Commands, Records: s.Records})
	}
	return audit.RunShards(ctx, shards, opts)
}

// asideKey returns the key of a record that is not filed under its id, as acts take it.
func asideKey(pool *tallyman.Pool, shard int, e kvstate.Entry) string {
	if strings.HasPrefix(string(e.Key), "_") {
		return desk.Key(shard, len(pool.Shards()), e.Key)
	}
	return ""
}

// scan visits the entries of all shards, one shard after the other.
func scan(ctx context.Context, pool *tallyman.Pool, visit func(shard int, e kvstate.Entry) error) error {
	for _, s := range pool.Shards() {
		if err := s.Records.Scan(ctx, func(e kvstate.Entry) error { return visit(s.Index, e) }); err != nil {
			return err
		}
	}
	return nil
}
