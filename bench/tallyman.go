package main

import (
	"context"
	"fmt"
	"iter"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// ours is Tallyman as a user has it, with everything on: record check before a
// submission and in batches before a claim, digests, leases, trail, retention.
type ours struct{}

func (ours) Name() string { return tallymanName }

// settings are Tallyman's in a layout.
func (l layout) settings() tallyman.Settings {
	s := l.pool
	s.Lease = l.lease
	return s
}

// described says in words how Tallyman is set up.
func (l layout) described() string {
	s := l.pool.WithDefaults()
	return fmt.Sprintf("%s, removal %s, commit %s", plural.Count(s.Shards, "shard"), s.Removal, s.Commit)
}

func (ours) Create(ctx context.Context, nc *nats.Conn, l layout) error {
	return tallyman.Create(ctx, nc, poolName, l.settings(),
		tallyman.Topology{Replicas: l.replicas, Queues: append([]string{queueName}, l.queues...)})
}

func (ours) Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error {
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	defer pool.Close()
	producer := pool.NewProducer(tallyman.ProducerConfig{Window: maxPending})
	all := func(yield func(tallyman.Command) bool) {
		for c := range commands {
			if !yield(tallyman.Command{ID: c.ID, Kind: kindName, Payload: c.Payload}) {
				return
			}
		}
	}
	var failed error
	if err := producer.SubmitMany(ctx, all, func(_ int, s tallyman.Submission, err error) {
		if err == nil && s.Absorbed {
			err = fmt.Errorf("%s was absorbed", s.ID)
		}
		if err != nil && failed == nil {
			failed = err
		}
	}); err != nil {
		return err
	}
	return failed
}

func (ours) Work(ctx context.Context, nc *nats.Conn) error {
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	defer pool.Close()
	mux := &tallyman.Mux{}
	mux.Handle(kindName, tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, nil
	}))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
