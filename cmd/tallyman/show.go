package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

type showCommand struct {
	ID   string `arg:"" help:"Id of the command, as it was submitted, or a key such as _conflict/7 (in a sharded pool 3:_conflict/7) that parked names. Put -- before one that begins with -."`
	JSON bool   `name:"json" help:"Print JSON."`
}

// Run prints what is known of one command.
func (c *showCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		v, err := look(ctx, pool, c.ID)
		if err != nil {
			return err
		}
		if c.JSON {
			return out.JSON(v)
		}
		return v.print(out)
	})
}

// look finds the record of a command, or the command itself in the stream.
func look(ctx context.Context, pool *tallyman.Pool, id string) (recordView, error) {
	token, err := dedupe.Token(id)
	if v, ok, err := lookAside(ctx, pool, id, token); ok || err != nil {
		return v, err
	}
	if err != nil {
		return recordView{}, err
	}
	// The record is looked for a second time, since it may appear, and the
	// command leave the stream, just after the first.
	for range 2 {
		r, err := pool.Find(ctx, id)
		if err == nil {
			return whole(ctx, pool, pool.ShardOf(token), r, token)
		}
		if errors.Is(err, command.ErrMalformed) {
			return recordView{}, damaged(pool.RecordsOf(token), token, err)
		}
		if !errors.Is(err, tallyman.ErrNotFound) {
			return recordView{}, err
		}
		if v, ok, err := lookWaiting(ctx, pool, id, token); ok || err != nil {
			return v, err
		}
	}
	if shards := pool.Shards(); len(shards) > 1 && kvstate.Aside(command.Token(id)) {
		return recordView{}, fmt.Errorf("command %q: %w in pool %q; if it is meant as the key of a record that was parked aside, say the shard, as tallyman parked does: %s",
			id, tallyman.ErrNotFound, pool.Name(), desk.Key(0, len(shards), command.Token(id)))
	}
	return recordView{}, fmt.Errorf("command %q: %w in pool %q: it was never submitted, or its receipt has expired (retention %v)",
		id, tallyman.ErrNotFound, pool.Name(), pool.Settings().Retention)
}

// lookWaiting finds a command that nobody has written about yet in the stream of
// its shard, or, if it was published by hand, in that of the first.
func lookWaiting(ctx context.Context, pool *tallyman.Pool, id string, token command.Token) (recordView, bool, error) {
	home := pool.ShardOf(token)
	for _, s := range []tallyman.Shard{pool.Shards()[0], home} { // it goes from the first into its own
		stored, err := s.Commands.Find(ctx, token)
		if err == nil {
			v := waitingView(id, stored)
			v.in(pool, s)
			return v, true, nil
		}
		if !errors.Is(err, stream.ErrNotFound) {
			return recordView{}, false, err
		}
		if s.Index == home.Index {
			break
		}
	}
	return recordView{}, false, nil
}

// lookAside finds a record that is not filed under its id, by its key. An id
// that looks like such a key comes first.
func lookAside(ctx context.Context, pool *tallyman.Pool, id string, token command.Token) (recordView, bool, error) {
	shards := pool.Shards()
	shard, key, ok := desk.ParseKey(id, len(shards))
	if !ok {
		return recordView{}, false, nil
	}
	if token != "" {
		if e, err := pool.RecordsOf(token).Read(ctx, token); err != nil || e.Raw != nil {
			return recordView{}, false, err
		}
	}
	at := shards[shard]
	e, err := at.Records.Read(ctx, key)
	switch {
	case err != nil:
		return recordView{}, false, err
	case e.Err != nil:
		return recordView{}, false, damaged(at.Records, key, e.Err)
	case e.Record == nil:
		return recordView{}, false, nil
	}
	v, err := whole(ctx, pool, at, e.Record, key)
	return v, true, err
}

// whole is the view of a record with what lies beside it: the payload of a
// parked command that had no room in the record.
func whole(ctx context.Context, pool *tallyman.Pool, at tallyman.Shard, r *kvstate.Record, key command.Token) (recordView, error) {
	if c := r.Command; c != nil && len(c.Payload) == 0 && dedupe.Digest(c.Kind, nil) != r.Digest {
		e, err := at.Records.Read(ctx, kvstate.PayloadKey(key))
		if err != nil {
			return recordView{}, err
		}
		with := *c
		with.Payload = e.Raw
		full := *r
		full.Command = &with
		r = &full
	}
	v := viewOf(r)
	v.in(pool, at)
	v.Next = desk.Next(r, kvstate.Aside(key))
	return v, nil
}

// in says where it lies, if that is not the same for all.
func (v *recordView) in(pool *tallyman.Pool, at tallyman.Shard) {
	if sharded(pool) {
		v.Bucket, v.Shard = at.Records.Bucket(), &at.Index
	}
}

// damaged says what can be done about a record that does not decode.
func damaged(records *kvstate.Store, key command.Token, err error) error {
	return fmt.Errorf("the record is damaged: %w; see its bytes with: nats kv get %s %s --raw. Nothing replaces it by itself; after nats kv purge %[2]s %[3]s the id is as if never used",
		err, records.Bucket(), key)
}

// waitingView shows a command that nobody has written about yet.
func waitingView(id string, s stream.Stored) recordView {
	env, err := dedupe.Recognise(s.Queue, s.Kind, s.Token, s.Header, s.Payload)
	v := recordView{
		ID: id, Kind: s.Kind, Queue: s.Queue, Digest: string(env.Digest), State: pending, Sequence: s.Seq,
		Seqs: []uint64{s.Seq}, StoredAt: known(s.At), Trail: []stepView{}, Next: desk.Next(nil, false),
	}
	if err != nil {
		v.Error = err.Error()
	}
	c := commandOf(&command.Command{
		ID: id, Kind: s.Kind, Queue: s.Queue, ContentType: env.ContentType, Payload: s.Payload, NotAfter: env.NotAfter,
	})
	v.Command = &c
	return v
}

func (v *recordView) print(out *cli.Out) error {
	t := newTable(out)
	some := func(name string, value any) {
		if s := fmt.Sprint(value); s != "" && s != "0" {
			t.row(name, s)
		}
	}
	some("id", v.ID)
	if v.Shard != nil {
		t.row("shard", fmt.Sprintf("%d, bucket %s", *v.Shard, v.Bucket))
	}
	some("kind", v.Kind)
	some("queue", v.Queue)
	some("state", v.State)
	some("reason", v.Reason)
	some("error", v.Error)
	some("attempt", v.Attempt)
	some("owner", v.Owner)
	some("token", v.Token)
	some("offset", v.Offset)
	if v.NextAt != nil {
		some("next try", moment(*v.NextAt))
	}
	t.row("sequences", strings.Trim(fmt.Sprint(v.Seqs), "[]"))
	some("digest", v.Digest)
	some("revision", v.Revision)
	if v.StoredAt != nil {
		some("stored", moment(*v.StoredAt))
	}
	bytes := func(name string, text *string, raw []byte, decoded any) {
		if decoded != nil {
			if said, err := json.Marshal(decoded); err == nil {
				t.row(name+" (MessagePack)", string(said))
				return
			}
		}
		if text != nil {
			t.row(name, *text)
		} else if raw != nil {
			t.row(name+" (base64)", base64.StdEncoding.EncodeToString(raw))
		}
	}
	bytes("checkpoint", v.Checkpoint, v.CheckpointBase64, v.CheckpointDecoded)
	bytes("intent", v.Intent, v.IntentBase64, v.IntentDecoded)
	bytes("result", v.Result, v.ResultBase64, v.ResultDecoded)
	some("content type", v.ContentType)
	some("resolved by", v.ResolvedBy)
	for _, f := range v.FollowUps {
		t.row("follow-up", f.ID+" ("+f.Kind+")")
	}
	if v.Command != nil {
		bytes("payload", v.Command.Payload, v.Command.PayloadBase64, v.Command.PayloadDecoded)
		if v.Command.NotAfter != nil {
			t.row("not after", moment(*v.Command.NotAfter))
		}
	}
	some("may be done", strings.Join(v.Next, ", "))
	if err := t.Flush(); err != nil {
		return err
	}
	if len(v.Trail) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	t.row("WHEN", "STATE", "OWNER", "TOKEN", "NOTE")
	for _, s := range v.Trail {
		t.row(moment(s.At), s.State, s.Owner, s.Token, s.Note)
	}
	return t.Flush()
}
