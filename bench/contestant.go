package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The assets that every contestant creates under the same names, so that the
// harness can watch them from outside.
const (
	poolName      = "bench"
	commandStream = "bench_commands"
	receiptStream = "KV_bench"
	queueName     = "default"
	kindName      = "noop"
)

const (
	payloadSize = 128  // bytes of a command's payload
	window      = 1000 // commands that a worker fetches at once
	maxPending  = 4000 // submissions on their way to the server
)

// Contestant is one way to turn commands into receipts. It is called in
// several processes, each of which has an instance and a connection of its own.
type Contestant interface {
	// Name is what the report and --only call it: one lower-case word.
	Name() string
	// Create makes the stream, its consumer and the bucket on an empty server.
	Create(ctx context.Context, nc *nats.Conn) error
	// Produce submits every command and returns when the server has accepted
	// all of them, or with the first error. It may keep maxPending in flight.
	Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error
	// Work turns commands into receipts and acks them until ctx ends; then
	// it returns nil. Its handler does nothing and its result is empty.
	Work(ctx context.Context, nc *nats.Conn) error
}

// contestants lists all of them. The first is the bound that the others are
// compared with.
func contestants() []Contestant {
	return []Contestant{raw{}, ours{}}
}

func contestantNamed(name string) (Contestant, error) {
	for _, c := range contestants() {
		if c.Name() == name {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no contestant is named %q", name)
}

// Command is what a contestant submits. Its ID tells when it was submitted, so
// that latency can be read from the receipt's key and timestamp alone.
type Command struct {
	ID      string
	Payload []byte
}

// commandsOf yields n commands, at the given rate per second or, when rate is
// 0, as fast as they are taken. A contestant that holds a paced sequence up
// is charged for it: a command that it takes late counts from when it was due.
func commandsOf(n, rate int) iter.Seq[Command] {
	payload := []byte(strings.Repeat("tallyman", payloadSize/8))
	return func(yield func(Command) bool) {
		start := time.Now()
		for i := range n {
			at := time.Now()
			if rate > 0 {
				due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
				if wait := due.Sub(at); wait > 0 {
					time.Sleep(wait)
					at = time.Now()
				} else {
					at = due
				}
			}
			id := strconv.Itoa(i) + "-" + strconv.FormatInt(at.UnixNano(), 10)
			if !yield(Command{ID: id, Payload: payload}) {
				return
			}
		}
	}
}

// submittedAt reads the time of submission from a command's ID.
func submittedAt(id string) (time.Time, error) {
	_, stamp, _ := strings.Cut(id, "-")
	ns, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("id %q carries no time of submission: %w", id, err)
	}
	return time.Unix(0, ns), nil
}
