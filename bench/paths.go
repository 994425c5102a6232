package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	laterQueue  = "later" // takes follow-ups; nobody works on it
	checkpoints = 100     // of each command that saves its progress
	followUps   = 10      // of each command that asks for some
)

// path is a way of a command through a worker other than the straight one,
// which costs one receipt and one ack.
type path struct {
	name   string
	counts string // what its rate counts
	per    int    // how many of those each command has
	writes int    // entries of the bucket that each command needs, of whoever works on it
	born   int    // commands that each one leaves in the stream
	ends   string // state of the records in the end; empty where there are none
	width  int    // commands that the bound has under way; as many as Tallyman has handlers, where those have to wait
	held   bool   // the commands are found claimed by a worker that was killed
}

func paths() []path {
	const handlers = 100 // Tallyman's default
	return []path{
		{name: "checkpoints", counts: "calls", per: checkpoints, writes: checkpoints + 1, ends: "completed", width: handlers},
		{name: "follow-ups", counts: "follow-ups", per: followUps, writes: 1, born: followUps, ends: "completed", width: window},
		{name: "takeovers", counts: "commands", per: 1, writes: 2, ends: "completed", width: window, held: true},
		{name: "retries", counts: "commands", per: 1, writes: 3, ends: "completed", width: window},
		{name: "parking", counts: "commands", per: 1, writes: 1, ends: "parked", width: window},
		{name: "eager claims", counts: "commands", per: 1, writes: 2, ends: "completed", width: window},
		{name: "prepared", counts: "commands", per: 1, writes: 2, ends: "completed", width: handlers},
		{name: relayPath, counts: "rows", per: 1, width: window},
	}
}

func pathNamed(name string) (path, error) {
	for _, p := range paths() {
		if p.name == name {
			return p, nil
		}
	}
	return path{}, fmt.Errorf("no path is named %q", name)
}

func pathNames() []string {
	var names []string
	for _, p := range paths() {
		names = append(names, p.name)
	}
	return names
}

// layout is what the assets are to be like. Only a path whose worker is killed
// has a short lease: elsewhere none is to run out on a busy machine.
func (p path) layout(l layout, quick bool) layout {
	l.queues = []string{laterQueue}
	switch {
	case p.held && quick:
		l.lease = 2 * time.Second
	case p.held:
		l.lease = 10 * time.Second // of a worker that holds N commands and keeps all alive meanwhile
	}
	return l
}

// walker is a contestant that knows the paths.
type walker interface {
	// Walk works on commands along a path until ctx ends; then it returns nil.
	Walk(ctx context.Context, nc *nats.Conn, p path) error
	// Hold claims n commands, as a worker does that will die, until ctx ends.
	Hold(ctx context.Context, nc *nats.Conn, n int) error
}

// workOf is what a worker's order asks for.
func workOf(c Contestant, o order) (func(context.Context) error, error) {
	if o.Path == "" {
		return func(ctx context.Context) error { return c.Work(ctx, o.URL) }, nil
	}
	p, err := pathNamed(o.Path)
	if err != nil {
		return nil, err
	}
	on, _ := c.(onJetStream)
	if r, ok := on.natsContestant.(relayer); ok && p.name == relayPath {
		return relayWork(r, o), nil
	}
	w, ok := on.natsContestant.(walker)
	if !ok {
		return nil, fmt.Errorf("%s does not know the path %q", c.Name(), p.name)
	}
	return func(ctx context.Context) error {
		return connected(o.URL, func(nc *nats.Conn) error {
			if o.Role == "hold" {
				return w.Hold(ctx, nc, o.N)
			}
			return w.Walk(ctx, nc, p)
		})
	}, nil
}
