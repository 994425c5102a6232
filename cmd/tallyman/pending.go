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
}

// listPending lists the commands in the stream that have no record, in the
// order of the stream.
func (c *listCommand) listPending(ctx context.Context, pool *tallyman.Pool, out *cli.Out) error {
	t := newTable(out)
	if !c.JSON {
		t.row("ID", "KIND", "QUEUE", "STATE", "SEQUENCE")
	}
	listed := 0
	visit := func(v pendingView) error {
		if c.JSON {
			if err := out.JSON(v); err != nil {
				return err
			}
		} else {
			t.row(v.ID, v.Kind, v.Queue, v.State, v.Sequence)
		}
		if listed++; listed == c.Limit {
			return errEnough
		}
		return nil
	}
	state, err := pool.Commands().State(ctx)
	if err != nil {
		return err
	}
	var page []pendingView
	var keys []command.Token
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		entries, err := pool.Records().ReadManyWait(ctx, keys)
		for i := range entries {
			if entries[i].Raw == nil && err == nil {
				err = visit(page[i])
			}
		}
		page, keys = page[:0], keys[:0]
		return err
	}
	err = pool.Commands().Sequences(ctx, state.LastSeq, func(seq uint64, subject string) error {
		queue, kind, token := pool.Commands().Names(subject)
		id, err := dedupe.ParseToken(token)
		if c.Kind != "" && c.Kind != kind {
			return nil
		}
		if err != nil {
			id = string(token) // a worker will park it as malformed
		}
		page, keys = append(page, pendingView{id, kind, queue, pending, seq}), append(keys, token)
		if len(page) == pendingPage {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, t.Flush())
}
