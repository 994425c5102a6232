package main

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/choria-io/asyncjobs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// asyncjobsPeer is choria-io/asyncjobs, which keeps tasks in one stream and
// their queue in another.
type asyncjobsPeer struct{}

const (
	asyncjobsQueue    = "BENCH"
	asyncjobsHandlers = 100 // handlers at once, and submissions on their way
)

func (asyncjobsPeer) Name() string   { return "asyncjobs" }
func (asyncjobsPeer) System() system { return jetStream{} }
func (asyncjobsPeer) Share() int     { return 10 }

func (asyncjobsPeer) Create(_ context.Context, url string) error {
	return connected(url, func(nc *nats.Conn) error {
		_, err := asyncjobs.NewClient(asyncjobs.NatsConn(nc), asyncjobs.WorkQueue(&asyncjobs.Queue{
			Name:          asyncjobsQueue,
			MaxRunTime:    time.Minute,
			MaxConcurrent: 10 * asyncjobsHandlers,
		}))
		return err
	}, nats.UseOldRequestStyle())
}

func (asyncjobsPeer) Produce(ctx context.Context, url string, commands iter.Seq[Command]) error {
	return connected(url, func(nc *nats.Conn) error {
		client, err := asyncjobs.NewClient(asyncjobs.NatsConn(nc), asyncjobs.BindWorkQueue(asyncjobsQueue))
		if err != nil {
			return err
		}
		return inParallel(ctx, commands, asyncjobsHandlers, func(c Command) error {
			task, err := asyncjobs.NewTask(kindName, string(c.Payload))
			if err != nil {
				return err
			}
			task.ID = c.ID
			return client.EnqueueTask(ctx, task)
		})
	}, nats.UseOldRequestStyle())
}

func (asyncjobsPeer) Work(ctx context.Context, url string) error {
	return connected(url, func(nc *nats.Conn) error {
		client, err := asyncjobs.NewClient(asyncjobs.NatsConn(nc), asyncjobs.BindWorkQueue(asyncjobsQueue), asyncjobs.ClientConcurrency(asyncjobsHandlers))
		if err != nil {
			return err
		}
		mux := asyncjobs.NewTaskRouter()
		if err := mux.HandleFunc(kindName, func(context.Context, asyncjobs.Logger, *asyncjobs.Task) (any, error) {
			return nil, nil
		}); err != nil {
			return err
		}
		return client.Run(ctx, mux)
	}, nats.UseOldRequestStyle())
}

func (asyncjobsPeer) Watch(ctx context.Context, url string) (books, error) {
	b, err := watchStreams(ctx, url, []shardName{
		{fmt.Sprintf(asyncjobs.WorkStreamNamePattern, asyncjobsQueue), asyncjobs.TasksStreamName},
	})
	if err != nil {
		return nil, err
	}
	return &seldom{books: asyncjobsBooks{b}, every: 10 * time.Millisecond}, nil
}

// asyncjobsBooks are those of two streams; an entry tells its state itself.
type asyncjobsBooks struct{ *streamBooks }

// Completions reads when the last state of each task was stored, by the
// server's clock. A task is saved before its item leaves the queue.
func (b asyncjobsBooks) Completions(ctx context.Context) (map[string]time.Time, error) {
	at := make(map[string]time.Time)
	err := b.each(ctx, false, func(entry jetstream.Msg, stored time.Time) error {
		var task asyncjobs.Task
		if err := json.Unmarshal(entry.Data(), &task); err != nil {
			return fmt.Errorf("read %s: %w", entry.Subject(), err)
		}
		if task.State != asyncjobs.TaskStateCompleted || task.Tries != 1 {
			return fmt.Errorf("%s: state %s after %d tries, want it completed once", task.ID, task.State, task.Tries)
		}
		at[task.ID] = stored
		return nil
	})
	return at, err
}
