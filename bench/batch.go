package main

import (
	"context"
	"iter"
	"sync"
)

// inBatches hands on the commands in batches of at most size, one batch at a
// time: all that have come while the last one was seen to. A lone command
// waits for nothing but that. It returns with the first error.
func inBatches(ctx context.Context, commands iter.Seq[Command], size int, f func([]Command) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	arrived := feed(ctx, commands, size)
	for first := range arrived {
		batch := append(make([]Command, 0, size), first)
		for len(batch) < size {
			select {
			case c, open := <-arrived:
				if open {
					batch = append(batch, c)
					continue
				}
			default:
			}
			break
		}
		if err := f(batch); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// inParallel calls f for each command, from workers goroutines, and returns
// with the first error once all of them have ended.
func inParallel(ctx context.Context, commands iter.Seq[Command], workers int, f func(Command) error) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	arrived := feed(ctx, commands, workers)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for c := range arrived {
				if err := f(c); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// feed sends the commands until ctx ends, and then closes the channel.
func feed(ctx context.Context, commands iter.Seq[Command], ahead int) <-chan Command {
	arrived := make(chan Command, ahead)
	go func() {
		defer close(arrived)
		for c := range commands {
			select {
			case arrived <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return arrived
}
