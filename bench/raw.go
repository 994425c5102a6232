package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const receiptSize = 200 // bytes of a raw receipt

// raw is the bound: the least that a worker pool on these assets can do, with
// the plain client and everything pipelined. One publish per command, one
// compare-and-swap per receipt, one ack. It has no record to read, no lease,
// no digest, no retention and no answer to any failure.
type raw struct{}

func (raw) Name() string { return boundName }

func (raw) Create(ctx context.Context, nc *nats.Conn, l layout) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name:                 commandStream,
		Subjects:             []string{poolName + ".commands.*.*.*"},
		Retention:            jetstream.WorkQueuePolicy,
		Replicas:             l.replicas,
		Storage:              jetstream.FileStorage,
		MaxMsgsPerSubject:    1,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		Duplicates:           2 * time.Minute,
		AllowDirect:          true,
	}); err != nil {
		return fmt.Errorf("create stream: %w", err)
	}
	for _, queue := range append([]string{queueName}, l.queues...) {
		if _, err := js.CreateConsumer(ctx, commandStream, jetstream.ConsumerConfig{
			Durable:       queue,
			FilterSubject: poolName + ".commands." + queue + ".>",
			AckPolicy:     jetstream.AckExplicitPolicy,
			AckWait:       l.lease,
			MaxDeliver:    -1,
			MaxAckPending: -1,
		}); err != nil {
			return fmt.Errorf("create consumer: %w", err)
		}
	}
	if _, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:         poolName,
		History:        2,
		Storage:        jetstream.FileStorage,
		Replicas:       l.replicas,
		LimitMarkerTTL: time.Hour,
	}); err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	return nil
}

func (raw) Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			fail(fmt.Errorf("submit %s: %w", m.Subject, err))
		}))
	if err != nil {
		return err
	}
	prefix := poolName + ".commands." + queueName + "." + kindName + "."
	for c := range commands {
		msg := &nats.Msg{
			Subject: prefix + c.ID,
			Header:  nats.Header{jetstream.MsgIDHeader: {c.ID}},
			Data:    c.Payload,
		}
		if _, err := js.PublishMsgAsync(msg, jetstream.WithStallWait(time.Minute)); err != nil {
			return fmt.Errorf("submit %s: %w", c.ID, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
	}
	// The error handler has run before the last publish counts as complete.
	return context.Cause(ctx)
}

func (raw) Work(ctx context.Context, nc *nats.Conn) error {
	failed, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	// unsettled maps a receipt on its way to the delivery that it settles.
	var mu sync.Mutex
	unsettled := make(map[*nats.Msg]jetstream.Msg, window)

	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(window),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, _ *jetstream.PubAck) {
			mu.Lock()
			delivery := unsettled[m]
			delete(unsettled, m)
			mu.Unlock()
			if err := delivery.Ack(); err != nil {
				fail(fmt.Errorf("ack %s: %w", delivery.Subject(), err))
			}
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			fail(fmt.Errorf("write receipt %s: %w", m.Subject, err))
		}))
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, commandStream, queueName)
	if err != nil {
		return err
	}

	value := bytes.Repeat([]byte("r"), receiptSize)
	settle := func(delivery jetstream.Msg) error {
		subject := delivery.Subject()
		receipt := &nats.Msg{
			Subject: "$KV." + poolName + "." + subject[strings.LastIndexByte(subject, '.')+1:],
			Header:  nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}},
			Data:    value,
		}
		mu.Lock()
		unsettled[receipt] = delivery
		mu.Unlock()
		if _, err := js.PublishMsgAsync(receipt, jetstream.WithStallWait(time.Minute)); err != nil {
			return fmt.Errorf("write receipt %s: %w", receipt.Subject, err)
		}
		return nil
	}
	for ctx.Err() == nil && failed.Err() == nil {
		if err := fetchEach(ctx, consumer, settle); err != nil {
			return err
		}
	}
	return context.Cause(failed)
}

// fetchEach pulls one batch and hands on each delivery as it arrives.
func fetchEach(ctx context.Context, consumer jetstream.Consumer, settle func(jetstream.Msg) error) error {
	pull, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	batch, err := consumer.Fetch(window, jetstream.FetchContext(pull))
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	for delivery := range batch.Messages() {
		if err := settle(delivery); err != nil {
			return err
		}
	}
	if err := batch.Error(); err != nil && pull.Err() == nil && !errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}
