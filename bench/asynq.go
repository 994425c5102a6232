package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqPeer is asynq on Redis, with its results kept.
type asynqPeer struct {
	sync bool // Redis flushes to disk before every answer
}

const (
	asynqHandlers  = 100                   // handlers at once, and submissions on their way
	asynqInterval  = 10 * time.Millisecond // between looks at an empty queue
	asynqRetention = 24 * time.Hour        // of a completed task
)

// What asynq calls its keys of the default queue.
const (
	asynqPrefix    = "asynq:{default}:"
	asynqTasks     = asynqPrefix + "t:"
	asynqCompleted = asynqPrefix + "completed"
	asynqProcessed = asynqPrefix + "processed"
)

func (asynqPeer) Name() string                         { return "asynq" }
func (a asynqPeer) System() system                     { return redisServer(a) }
func (asynqPeer) Share() int                           { return 1 }
func (asynqPeer) Create(context.Context, string) error { return nil } // it creates as it goes

func (asynqPeer) Produce(ctx context.Context, url string, commands iter.Seq[Command]) error {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: url, PoolSize: asynqHandlers})
	defer client.Close() //nolint:errcheck // all was accepted, or an error is returned
	return inParallel(ctx, commands, asynqHandlers, func(c Command) error {
		_, err := client.EnqueueContext(ctx, asynq.NewTask(kindName, c.Payload), asynq.TaskID(c.ID), asynq.Retention(asynqRetention))
		return err
	})
}

func (asynqPeer) Work(ctx context.Context, url string) error {
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: url, PoolSize: asynqHandlers}, asynq.Config{
		Concurrency:       asynqHandlers,
		TaskCheckInterval: asynqInterval,
		LogLevel:          asynq.ErrorLevel,
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc(kindName, func(context.Context, *asynq.Task) error { return nil })
	if err := server.Start(mux); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func (asynqPeer) Watch(_ context.Context, url string) (books, error) {
	return &asynqBooks{client: redis.NewClient(&redis.Options{Addr: url})}, nil
}

// asynqBooks read asynq's keys. Asynq keeps the second in which a task was
// completed; for a finer time Redis is asked to tell of every write to a task.
type asynqBooks struct {
	client   *redis.Client
	sub      *redis.PubSub // nil unless times are wanted
	reading  sync.WaitGroup
	mu       sync.Mutex
	writes   map[string]int       // to each task; guarded by mu
	lastSeen map[string]time.Time // of them; guarded by mu
}

// asynqWrites is how often a task is written that is completed at the first
// attempt: pending, active, completed.
const asynqWrites = 3

func (b *asynqBooks) Close() {
	if b.sub != nil {
		_ = b.sub.Close() // it was only read from
		b.reading.Wait()
	}
	_ = b.client.Close() // it was only read from
}

func (b *asynqBooks) Time(ctx context.Context) error {
	if err := b.client.ConfigSet(ctx, "notify-keyspace-events", "Kh").Err(); err != nil {
		return fmt.Errorf("ask for notifications: %w", err)
	}
	prefix := "__keyspace@0__:" + asynqTasks
	b.sub = b.client.PSubscribe(ctx, prefix+"*")
	if _, err := b.sub.Receive(ctx); err != nil {
		return fmt.Errorf("subscribe to notifications: %w", err)
	}
	b.writes, b.lastSeen = make(map[string]int), make(map[string]time.Time)
	b.reading.Go(func() {
		for {
			m, err := b.sub.ReceiveMessage(context.Background())
			if err != nil {
				return // closed; what is missing then is noticed
			}
			if m.Payload != "hset" {
				continue
			}
			id := m.Channel[len(prefix):]
			b.mu.Lock()
			b.writes[id]++
			b.lastSeen[id] = time.Now()
			b.mu.Unlock()
		}
	})
	return nil
}

func (b *asynqBooks) Settled(ctx context.Context, n int) (time.Time, bool, error) {
	done, err := b.client.ZCard(ctx, asynqCompleted).Result()
	if err != nil {
		return time.Time{}, false, fmt.Errorf("count the completed: %w", err)
	}
	return time.Now(), done >= int64(n), nil
}

func (b *asynqBooks) Completions(ctx context.Context) (map[string]time.Time, error) {
	ids, err := b.client.ZRange(ctx, asynqCompleted, 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the completed: %w", err)
	}
	processed, err := b.client.Get(ctx, asynqProcessed).Int()
	if err != nil {
		return nil, fmt.Errorf("read how many were processed: %w", err)
	}
	if processed != len(ids) {
		return nil, fmt.Errorf("%d were processed, %d are completed", processed, len(ids))
	}
	pipe := b.client.Pipeline()
	left := []*redis.IntCmd{
		pipe.LLen(ctx, asynqPrefix+"pending"), pipe.LLen(ctx, asynqPrefix+"active"), pipe.ZCard(ctx, asynqPrefix+"lease"),
		pipe.ZCard(ctx, asynqPrefix+"scheduled"), pipe.ZCard(ctx, asynqPrefix+"retry"), pipe.ZCard(ctx, asynqPrefix+"archived"),
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("count what is left: %w", err)
	}
	for _, count := range left {
		if count.Val() != 0 {
			return nil, fmt.Errorf("%v holds %d, want none", count.Args()[1], count.Val())
		}
	}
	at := make(map[string]time.Time, len(ids))
	for _, id := range ids {
		if at[id], err = b.completedAt(ctx, id); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// completedAt returns when the last write to a task was seen, and zero unless
// times are wanted. The notification may still be on its way.
func (b *asynqBooks) completedAt(ctx context.Context, id string) (time.Time, error) {
	if b.sub == nil {
		return time.Time{}, nil
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		b.mu.Lock()
		writes, at := b.writes[id], b.lastSeen[id]
		b.mu.Unlock()
		switch {
		case writes == asynqWrites:
			return at, nil
		case writes > asynqWrites:
			return at, fmt.Errorf("%s was written %d times, want %d", id, writes, asynqWrites)
		}
		select {
		case <-ctx.Done():
			return at, errors.Join(context.Cause(ctx), fmt.Errorf("%s: %d writes were seen, want %d", id, writes, asynqWrites))
		case <-tick.C:
		}
	}
}
