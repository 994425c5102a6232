package main

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Those that the report treats apart.
const (
	boundName      = "raw"
	batchBoundName = "raw-batch" // the second bound, where flushes count
	tallymanName   = "tallyman"
)

const (
	payloadSize = 128  // bytes of a command's payload
	window      = 1000 // commands that a worker fetches at once
	maxPending  = 4000 // submissions on their way to the server
)

// Contestant is one way to turn commands into durable completions. It is
// called in several processes, each of which has an instance of its own, and
// connects by itself to the server at url.
type Contestant interface {
	// Name is what the report and --only call it: lower case, no commas.
	Name() string
	// System is the server that it needs.
	System() system
	// Share is the part of the load that it gets: 1 for all, 10 for a tenth, so
	// that a slow one does not take minutes for a scenario.
	Share() int
	// Create makes what it needs on an empty server.
	Create(ctx context.Context, url string) error
	// Produce submits every command and returns when the server has accepted
	// all of them, or with the first error. It may keep maxPending in flight.
	Produce(ctx context.Context, url string, commands iter.Seq[Command]) error
	// Work completes commands until ctx ends; then it returns nil. Its handler
	// does nothing and its result is empty.
	Work(ctx context.Context, url string) error
	// Watch reads from outside what becomes of the commands, after Create.
	Watch(ctx context.Context, url string) (books, error)
}

// books tell what became of the commands. They are read from the server and
// never reported by a contestant, and serve one caller at a time.
type books interface {
	// Time prepares to tell when each command is completed, where the server
	// does not keep that itself. It is called before the first command, and only
	// if the times are wanted: it may slow the server down a little.
	Time(ctx context.Context) error
	// Settled tells whether n commands are completed and none is left, and when
	// the last one was. It costs the server next to nothing.
	Settled(ctx context.Context, n int) (end time.Time, done bool, err error)
	// Completions returns the IDs of all completed commands and, after Time,
	// when each was. It fails if one is not completed or was more than once.
	Completions(ctx context.Context) (map[string]time.Time, error)
	Close()
}

// contestants lists those that take part where nobody is named: the bound that
// Tallyman is compared with, Tallyman, and its peers.
func contestants() []Contestant {
	return []Contestant{
		onJetStream{natsContestant: raw{}},
		onJetStream{natsContestant: rawReads{}},
		onJetStream{natsContestant: ours{}},
		river{name: "river", share: 10},
		river{name: "river-tuned", share: 1, tuned: true},
		asynqPeer{},
		asyncjobsPeer{},
	}
}

// powerSafe lists those that take part with --sync: the bounds, Tallyman, and
// the peers whose own way it is to lose nothing in a power cut.
func powerSafe() []Contestant {
	return []Contestant{
		onJetStream{natsContestant: raw{}},
		onJetStream{natsContestant: rawBatch{}},
		onJetStream{natsContestant: ours{}},
		river{name: "river-tuned", share: 1, tuned: true},
		river{name: "river-tx", share: 1, tuned: true, inTx: true},
	}
}

func contestantNamed(name string) (Contestant, error) {
	for _, c := range slices.Concat(contestants(), powerSafe()) {
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
func commandsOf(n, rate int) iter.Seq[Command] { return commandsWith(payloadSize, n, rate) }

// commandsWith does so with payloads of so many bytes.
func commandsWith(size, n, rate int) iter.Seq[Command] {
	payload := []byte(strings.Repeat("tallyman", size/8+1))[:size]
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
