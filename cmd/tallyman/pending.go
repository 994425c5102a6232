package main

import (
	"context"
	"errors"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// pendingPage is how many commands of the stream are compared with their
// records at once. It bounds the memory: a record may be as large as a message.
const pendingPage = 64

// pendingView is one line of the list of pending commands.
type pendingView struct {
	ID       string        `json:"id"`
	Kind     string        `json:"kind"`
	Queue    string        `json:"queue"`
	State    kvstate.State `json:"state"`
	Sequence uint64        `json:"sequence"`
	Shard    *int          `json:"shard,omitempty"` // whose sequence that is, in a sharded pool
}

// listPending lists the commands in the stream that have no record, in the
// order of the stream; of a sharded pool one shard after the other.
func (c *listCommand) listPending(ctx context.Context, pool *tallyman.Pool, out *cli.Out) error {
	t := newTable(out)
	if !c.JSON {
		cells := []any{"ID", "KIND", "QUEUE", "STATE", "SEQUENCE"}
		if sharded(pool) {
			cells = append(cells, "SHARD")
		}
		t.row(cells...)
	}
	listed := 0
	visit := func(v pendingView) error {
		if c.JSON {
			if err := out.JSON(v); err != nil {
				return err
			}
		} else {
			cells := []any{v.ID, v.Kind, v.Queue, v.State, v.Sequence}
			if v.Shard != nil {
				cells = append(cells, *v.Shard)
			}
			t.row(cells...)
		}
		if listed++; listed == c.Limit {
			return errEnough
		}
		return nil
	}
	var err error
	for _, s := range pool.Shards() {
		if err = c.pendingIn(ctx, pool, s, visit); err != nil {
			break
		}
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, t.Flush())
}

// pendingIn visits those of one shard. What was published by hand lies in the
// first one until a worker carries it to its own, and so does its record.
func (c *listCommand) pendingIn(ctx context.Context, pool *tallyman.Pool, at tallyman.Shard, visit func(pendingView) error) error {
	state, err := at.Commands.State(ctx)
	if err != nil {
		return err
	}
	var in *int
	if sharded(pool) {
		in = &at.Index
	}
	pages := make([]page, len(pool.Shards())) // by the shard of the record
	err = at.Commands.Sequences(ctx, state.LastSeq, func(seq uint64, subject string) error {
		queue, kind, token := at.Commands.Names(subject)
		id, err := dedupe.ParseToken(token)
		if c.Kind != "" && c.Kind != kind {
			return nil
		}
		if err != nil {
			id = string(token) // a worker will park it as malformed
		}
		home := pool.ShardOf(token)
		p := &pages[home.Index]
		p.lines, p.keys = append(p.lines, pendingView{id, kind, queue, pending, seq, in}), append(p.keys, token)
		if len(p.lines) == pendingPage {
			return p.flush(ctx, home.Records, visit)
		}
		return nil
	})
	for i := range pages {
		if err == nil {
			err = pages[i].flush(ctx, pool.Shards()[i].Records, visit)
		}
	}
	return err
}

// page is what is compared with its records at once.
type page struct {
	lines []pendingView
	keys  []command.Token
}

func (p *page) flush(ctx context.Context, records *kvstate.Store, visit func(pendingView) error) error {
	if len(p.lines) == 0 {
		return nil
	}
	entries, err := records.ReadManyWait(ctx, p.keys)
	for i := range entries {
		if entries[i].Raw == nil && err == nil {
			err = visit(p.lines[i])
		}
	}
	p.lines, p.keys = p.lines[:0], p.keys[:0]
	return err
}
