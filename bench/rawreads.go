package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

const atOnce = 100 // commands that rawReads has in its hands

// rawReads is raw with the two looks at the bucket that Tallyman takes: one
// before a command is published, so that what has a receipt is not accepted
// again, and one before it is worked on. It is what one would write by hand, each
// step awaited, and shows what those looks cost a lone command.
type rawReads struct{ raw }

func (rawReads) Name() string { return "raw-reads" }

func (rawReads) Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket, err := js.KeyValue(ctx, poolName)
	if err != nil {
		return err
	}
	prefix := poolName + ".commands." + queueName + "." + kindName + "."
	submitting, ctx := errgroup.WithContext(ctx)
	submitting.SetLimit(atOnce)
	for c := range commands {
		submitting.Go(func() error {
			if err := absent(ctx, bucket, c.ID); err != nil {
				return err
			}
			msg := &nats.Msg{Subject: prefix + c.ID, Header: nats.Header{jetstream.MsgIDHeader: {c.ID}}, Data: c.Payload}
			if _, err := js.PublishMsg(ctx, msg); err != nil {
				return fmt.Errorf("submit %s: %w", c.ID, err)
			}
			return nil
		})
		if ctx.Err() != nil {
			break
		}
	}
	return submitting.Wait()
}

func (rawReads) Work(ctx context.Context, nc *nats.Conn) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	bucket, err := js.KeyValue(ctx, poolName)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, commandStream, queueName)
	if err != nil {
		return err
	}
	value := make([]byte, receiptSize)
	// What is in hand when ctx ends is finished.
	settling, failed := errgroup.WithContext(context.WithoutCancel(ctx))
	settling.SetLimit(atOnce)
	settle := func(delivery jetstream.Msg) error {
		settling.Go(func() error {
			subject := delivery.Subject()
			id := subject[strings.LastIndexByte(subject, '.')+1:]
			if err := absent(failed, bucket, id); err != nil {
				return err
			}
			if _, err := bucket.Create(failed, id, value); err != nil {
				return fmt.Errorf("write receipt %s: %w", id, err)
			}
			return delivery.Ack()
		})
		return failed.Err()
	}
	for ctx.Err() == nil && failed.Err() == nil {
		if err := fetchEach(ctx, consumer, settle); err != nil {
			return errors.Join(err, settling.Wait())
		}
	}
	return settling.Wait()
}

// absent fails if there is an entry of that key.
func absent(ctx context.Context, bucket jetstream.KeyValue, id string) error {
	switch _, err := bucket.Get(ctx, id); {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("read receipt %s: %w", id, err)
	}
	return fmt.Errorf("%s has a receipt already", id)
}
