package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/stream"
)

// lookTime bounds the look for a queue.
const lookTime = 2 * time.Second

// lookFor tells stderr if a queue has no consumer, as when its name is misspelt:
// what is submitted to it is accepted all the same, and waits. It asks once,
// beside the submissions, and says nothing if it may not ask or gets no answer.
// What it returns waits until that is settled.
func lookFor(ctx context.Context, nc *nats.Conn, pool *tallyman.Pool, queue string, stderr io.Writer) (settled func()) {
	ctx, stop := cli.UntilDenied(ctx, nc)
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		if _, err := pool.Commands().Queue(ctx, queue); errors.Is(err, stream.ErrNoQueue) {
			fmt.Fprintf(stderr, "producer: queue %q has no consumer: commands for it are accepted, and wait until it has one; if that is its name, run: tallyman init --pool %s --queue %s\n",
				queue, pool.Name(), queue)
		}
	}()
	return func() {
		<-looked
		cancel()
		stop()
	}
}
