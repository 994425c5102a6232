package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The headers of an atomic batch, which the client has no names for.
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

const (
	batchSize     = 1000            // messages of an atomic batch at most, the server's limit
	batchesFlying = 2               // at once; the server takes 50 for a stream
	purgeInterval = time.Second / 4 // between removals of what is acked
)

// rawBatch is the bound where the server flushes before it answers: a flush is
// shared by all that is in one atomic batch. Commands stay in the stream when
// they are acked, since a removal is a flush of its own, and are purged in bulk.
type rawBatch struct{}

func (rawBatch) Name() string { return batchBoundName }

func (rawBatch) Create(ctx context.Context, nc *nats.Conn, l layout) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for _, config := range []jetstream.StreamConfig{
		{
			Name: commandStream, Subjects: []string{poolName + ".commands.*.*.*"},
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, Duplicates: 2 * time.Minute,
		},
		{
			Name: receiptStream, Subjects: []string{"$KV." + poolName + ".>"},
			MaxMsgsPerSubject: 2, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowMsgTTL: true,
		},
	} {
		config.Retention, config.Storage, config.Replicas = jetstream.LimitsPolicy, jetstream.FileStorage, l.replicas
		config.AllowDirect, config.AllowAtomicPublish = true, true
		if _, err := js.CreateStream(ctx, config); err != nil {
			return fmt.Errorf("create %s: %w", config.Name, err)
		}
	}
	if _, err := js.CreateConsumer(ctx, commandStream, jetstream.ConsumerConfig{
		Durable: queueName, FilterSubject: poolName + ".commands." + queueName + ".>",
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: l.lease, MaxDeliver: -1, MaxAckPending: -1,
	}); err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	return nil
}

func (rawBatch) Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error {
	b := newBatcher(ctx, nc)
	defer b.fail(nil)
	prefix := poolName + ".commands." + queueName + "." + kindName + "."
	if err := inBatches(b.ctx, commands, batchSize, func(batch []Command) error {
		msgs := make([]*nats.Msg, len(batch))
		for i, c := range batch {
			msgs[i] = &nats.Msg{Subject: prefix + c.ID, Header: nats.Header{jetstream.MsgIDHeader: {c.ID}}, Data: c.Payload}
		}
		return b.send(msgs, nil)
	}); err != nil {
		return err
	}
	return b.wait()
}

func (rawBatch) Work(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, commandStream)
	if err != nil {
		return err
	}
	consumer, err := stream.Consumer(ctx, queueName)
	if err != nil {
		return err
	}
	b := newBatcher(ctx, nc)
	defer b.fail(nil)
	b.flying.Go(func() { b.purge(stream, consumer) })
	value := bytes.Repeat([]byte("r"), receiptSize)
	arrived := make(chan jetstream.Msg, window)
	b.flying.Go(func() {
		defer close(arrived)
		for b.ctx.Err() == nil {
			if err := fetchEach(b.ctx, consumer, func(delivery jetstream.Msg) error {
				arrived <- delivery
				return nil
			}); err != nil {
				b.fail(err)
			}
		}
	})
	for first := range arrived {
		deliveries := append(make([]jetstream.Msg, 0, batchSize), first)
		for len(deliveries) < batchSize && len(arrived) > 0 {
			deliveries = append(deliveries, <-arrived)
		}
		receipts := make([]*nats.Msg, len(deliveries))
		for i, delivery := range deliveries {
			subject := delivery.Subject()
			receipts[i] = &nats.Msg{
				Subject: "$KV." + poolName + "." + subject[strings.LastIndexByte(subject, '.')+1:],
				Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}},
				Data:    value,
			}
		}
		if err := b.send(receipts, deliveries); err != nil && b.ctx.Err() == nil {
			b.fail(err)
		}
	}
	b.flying.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(b.ctx)
}

// batcher sends atomic batches, a few at a time.
type batcher struct {
	nc     *nats.Conn
	ctx    context.Context
	fail   context.CancelCauseFunc
	free   chan struct{} // one for each batch under way
	flying sync.WaitGroup
}

func newBatcher(ctx context.Context, nc *nats.Conn) *batcher {
	b := &batcher{nc: nc, free: make(chan struct{}, batchesFlying)}
	b.ctx, b.fail = context.WithCancelCause(ctx)
	return b
}

// send publishes a batch, or a lone message as it is, and once it is stored, acks the deliveries. It waits
// until the batch is on its way only.
func (b *batcher) send(msgs []*nats.Msg, deliveries []jetstream.Msg) error {
	select {
	case b.free <- struct{}{}:
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
	id := rand.Text()
	last := msgs[len(msgs)-1]
	if len(msgs) > 1 { // a batch of one would only cost more
		for i, m := range msgs {
			m.Header.Set(batchIDHeader, id)
			m.Header.Set(batchSequenceHeader, strconv.Itoa(i+1))
		}
		last.Header.Set(batchCommitHeader, "1")
	}
	for _, m := range msgs[:len(msgs)-1] {
		if err := b.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	inbox := b.nc.NewInbox()
	answer, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	last.Reply = inbox
	if err := b.nc.PublishMsg(last); err != nil {
		return err
	}
	b.flying.Go(func() {
		defer func() { <-b.free }()
		if err := b.settle(answer, len(msgs), deliveries); err != nil && b.ctx.Err() == nil {
			b.fail(err)
		}
	})
	return nil
}

func (b *batcher) settle(answer *nats.Subscription, n int, deliveries []jetstream.Msg) error {
	defer answer.Unsubscribe() //nolint:errcheck // its connection is about to go, or nothing more will come
	m, err := answer.NextMsgWithContext(b.ctx)
	if err != nil {
		return fmt.Errorf("store a batch: %w", err)
	}
	if err := checkBatch(m.Data, n); err != nil {
		return err
	}
	for _, delivery := range deliveries {
		if err := delivery.Ack(); err != nil {
			return fmt.Errorf("ack %s: %w", delivery.Subject(), err)
		}
	}
	return nil
}

// wait returns when all batches are stored.
func (b *batcher) wait() error {
	b.flying.Wait()
	return context.Cause(b.ctx)
}

// purge removes what lies below the first command that is not acked, from time
// to time until the context ends.
func (b *batcher) purge(stream jetstream.Stream, consumer jetstream.Consumer) {
	tick := time.NewTicker(purgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			return
		}
		info, err := consumer.Info(b.ctx)
		if err == nil && info.AckFloor.Stream > 0 {
			err = stream.Purge(b.ctx, jetstream.WithPurgeSequence(info.AckFloor.Stream+1))
		}
		if err != nil && b.ctx.Err() == nil {
			b.fail(fmt.Errorf("purge: %w", err))
			return
		}
	}
}
