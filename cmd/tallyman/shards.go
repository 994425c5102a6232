package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
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

// auditPool audits all shards. Where the pool has been spread anew since it was
// opened, that is the error: what seems amiss may lie in its place, or be on the way
// there, and the remedies of the report would be wrong.
func auditPool(ctx context.Context, common *cli.Common, nc *nats.Conn, pool *tallyman.Pool, opts audit.Options) (audit.Report, error) {
	var shards []audit.Shard
	for _, s := range pool.Shards() {
		shards = append(shards, audit.Shard{Commands: s.Commands, Records: s.Records})
	}
	r, err := audit.RunShards(ctx, shards, opts)
	if err != nil || r.Balanced {
		return r, err
	}
	now, err := common.Open(ctx, nc)
	if err != nil {
		return r, err
	}
	defer func() { _ = now.Close() }() // never fails
	if n := len(now.Shards()); n != len(shards) {
		return r, fmt.Errorf("%w: the pool was spread from %d to %d shards meanwhile; audit again", tallyman.ErrSettings, len(shards), n)
	}
	return r, nil
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
