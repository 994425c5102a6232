package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// shardName is what one shard of a pool calls its streams.
type shardName struct{ commands, entries string }

// shardNames returns the names of the streams of a pool with so many shards:
// those of the first one are those of a pool without shards.
func shardNames(shards int) []shardName {
	names := []shardName{{commandStream, receiptStream}}
	for k := 1; k < shards; k++ {
		shard := poolName + "_" + strconv.Itoa(k)
		names = append(names, shardName{shard + "_commands", "KV_" + shard})
	}
	return names
}

// keyOf returns the key that a bucket's subject is of: $KV.<bucket>.<key>.
func keyOf(subject string) string { return strings.SplitN(subject, ".", 3)[2] }

// streamBooks are the books of streams of commands, each beside a stream with
// one entry per command. All are watched from outside.
type streamBooks struct {
	nc     *nats.Conn
	shards []shardBooks
	kept   bool   // commands stay after their ack, and are removed later
	before uint64 // entries before the first command
}

type shardBooks struct{ commands, entries jetstream.Stream }

// watchStreams opens the books of those shards that there are: the first one
// must be, and a library that knows no shards makes no other.
func watchStreams(ctx context.Context, url string, names []shardName) (_ *streamBooks, err error) {
	nc, err := nats.Connect(url, nats.Name("bench"))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	b := &streamBooks{nc: nc}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		var shard shardBooks
		if shard.commands, err = js.Stream(ctx, name.commands); i > 0 && errors.Is(err, jetstream.ErrStreamNotFound) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("look up %s: %w", name.commands, err)
		}
		if shard.entries, err = js.Stream(ctx, name.entries); err != nil {
			return nil, fmt.Errorf("look up %s: %w", name.entries, err)
		}
		b.shards = append(b.shards, shard)
		b.before += shard.entries.CachedInfo().State.NumSubjects
		b.kept = shard.commands.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy
	}
	return b, nil
}

func (b *streamBooks) Close() { b.nc.Close() }

// assets says in words what was found.
func (b *streamBooks) assets() string {
	removed := "its ack removes a command"
	if b.kept {
		removed = "commands are removed after their acks"
	}
	if len(b.shards) == 1 {
		return "1 command stream, " + removed
	}
	return fmt.Sprintf("%d command streams, %s", len(b.shards), removed)
}

// Time has nothing to prepare: JetStream keeps the time of every entry.
func (*streamBooks) Time(context.Context) error { return nil }

// Settled is true when n commands came and none is left to be worked on. No ack
// without a receipt: as many entries must be there then.
func (b *streamBooks) Settled(ctx context.Context, n int) (time.Time, bool, error) {
	commands, err := b.commands(ctx)
	if err != nil || commands.LastSeq < uint64(n) || !b.kept && commands.Msgs > 0 {
		return time.Time{}, false, err
	}
	entries, err := b.entries(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	got := entries.NumSubjects - b.before
	if b.kept { // what is left is known by the consumers alone, and asking them costs more
		if got < uint64(n) {
			return time.Time{}, false, nil
		}
		left, err := b.outstanding(ctx)
		return time.Now(), err == nil && left == 0, err
	}
	if got < uint64(n) {
		return time.Time{}, false, fmt.Errorf("%d commands are gone from the stream, but only %d receipts are there", n, got)
	}
	return time.Now(), true, nil
}

// outstanding returns how many commands are to be worked on or under way.
func (b *streamBooks) outstanding(ctx context.Context) (n uint64, err error) {
	if !b.kept {
		commands, err := b.commands(ctx)
		return commands.Msgs, err
	}
	for _, shard := range b.shards {
		queues := shard.commands.ListConsumers(ctx)
		for queue := range queues.Info() {
			n += queue.NumPending + uint64(queue.NumAckPending)
		}
		if err := queues.Err(); err != nil {
			return 0, fmt.Errorf("read state of the queues: %w", err)
		}
	}
	return n, nil
}

// sweepTimeout is how long acked commands may stay where they are swept out.
const sweepTimeout = 10 * time.Second

// swept waits until no more than left commands are in the streams. Its worker
// must still run.
func (b *streamBooks) swept(ctx context.Context, left uint64) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		commands, err := b.commands(ctx)
		if err == nil && commands.Msgs <= left {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d commands are in the stream %v after their acks, want %d: %w", commands.Msgs, sweepTimeout, left, errors.Join(err, ctx.Err()))
		}
	}
}

// commands and entries read how all command streams, or buckets, stand together.
func (b *streamBooks) commands(ctx context.Context) (jetstream.StreamState, error) {
	return b.sum(ctx, "commands", func(s shardBooks) jetstream.Stream { return s.commands })
}

func (b *streamBooks) entries(ctx context.Context) (jetstream.StreamState, error) {
	return b.sum(ctx, "receipts", func(s shardBooks) jetstream.Stream { return s.entries })
}

func (b *streamBooks) sum(ctx context.Context, what string, of func(shardBooks) jetstream.Stream) (all jetstream.StreamState, err error) {
	for _, shard := range b.shards {
		info, err := of(shard).Info(ctx)
		if err != nil {
			return jetstream.StreamState{}, fmt.Errorf("read state of the %s: %w", what, err)
		}
		all.Msgs += info.State.Msgs
		all.Bytes += info.State.Bytes
		all.LastSeq += info.State.LastSeq
		all.NumSubjects += info.State.NumSubjects
	}
	return all, nil
}

// Completions reads when each receipt was stored, by the server's clock.
func (b *streamBooks) Completions(ctx context.Context) (map[string]time.Time, error) {
	at := make(map[string]time.Time)
	err := b.each(ctx, true, func(entry jetstream.Msg, stored time.Time) error {
		// Keys that begin with _ belong to the pool.
		if key := keyOf(entry.Subject()); !strings.HasPrefix(key, "_") {
			at[key] = stored
		}
		return nil
	})
	return at, err
}

// each hands on every entry, with or without its body, and when it was stored.
func (b *streamBooks) each(ctx context.Context, headersOnly bool, f func(jetstream.Msg, time.Time) error) error {
	entries, err := b.entries(ctx)
	if err != nil {
		return err
	}
	if entries.Msgs == 0 {
		return errors.New("there are no receipts")
	}
	for _, shard := range b.shards {
		if err := eachEntry(ctx, shard.entries, headersOnly, f); err != nil {
			return fmt.Errorf("read receipts: %w", err)
		}
	}
	return nil
}

func eachEntry(ctx context.Context, stream jetstream.Stream, headersOnly bool, f func(jetstream.Msg, time.Time) error) error {
	info, err := stream.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: headersOnly})
	if err != nil {
		return err
	}
	entries, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer entries.Stop()
	for {
		entry, err := entries.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := entry.Metadata()
		if err != nil {
			return err
		}
		if err := f(entry, meta.Timestamp); err != nil {
			return err
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			return nil
		}
	}
}
