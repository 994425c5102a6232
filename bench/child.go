package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync"
	"time"
)

// childCommand is the hidden first argument with which the program executes
// itself; the second one is an order in JSON.
const childCommand = "child"

// order tells a child what it is.
type order struct {
	Role       string `json:"role"` // server, node, produce, work or hold
	Dir        string `json:"dir,omitempty"`
	URL        string `json:"url,omitempty"`
	System     string `json:"system,omitempty"`     // of a server
	Contestant string `json:"contestant,omitempty"` // of the others
	N          int    `json:"n,omitempty"`
	Rate       int    `json:"rate,omitempty"`    // commands per second; 0: as fast as possible
	Payload    int    `json:"payload,omitempty"` // bytes of each command's payload; 0 for payloadSize
	Path       string `json:"path,omitempty"`    // of a worker: the way to take; empty for the straight one
	DB         string `json:"db,omitempty"`      // of a relay: the file of its database
	Node       int    `json:"node,omitempty"`    // of a node: its place in Ports
	Ports      []int  `json:"ports,omitempty"`   // of a node: where the nodes of its cluster find each other
	Sync       bool   `json:"sync,omitempty"`    // of a node: flush before every answer
	Profile    string `json:"profile,omitempty"` // file for a CPU profile of the whole life
	Trace      string `json:"trace,omitempty"`   // of a server: file for a line per flush, written by strace
}

// report is a child's answer to one line of its standard input, and the
// first one, unasked, says that it is ready.
type report struct {
	Error string `json:"error,omitempty"`
	// of a server that is ready
	URL        string `json:"url,omitempty"`
	Version    string `json:"version,omitempty"`
	Durability string `json:"durability,omitempty"`
	Assets     string `json:"assets,omitempty"` // what was made there; filled in by the parent
	// of the work that the line asked for
	Start time.Time     `json:"start,omitzero"`
	End   time.Time     `json:"end,omitzero"`
	CPU   time.Duration `json:"cpu,omitempty"` // since the process began, or the server that it runs
	Peak  int64         `json:"peak,omitempty"`
	// Traffic is what this process exchanged with the server, and of a server what
	// it gave to its disk and to its fellows.
	Traffic traffic `json:"traffic,omitzero"`
}

// answer does what one line asks for.
type answer func(line string) (report, error)

// speaker writes reports. It is safe for concurrent use.
type speaker struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (s *speaker) say(r report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enc.Encode(r)
}

// fail reports err and returns it.
func (s *speaker) fail(err error) error {
	return errors.Join(err, s.say(report{Error: err.Error()}))
}

// runChild is the whole life of a child: it gets ready, answers every line,
// and ends when its standard input does.
func runChild(ctx context.Context, arg string, in io.Reader, out io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(arg), &o); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := speaker{enc: json.NewEncoder(out)}
	if o.Profile != "" {
		file, err := os.Create(o.Profile)
		if err != nil {
			return say.fail(err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			return say.fail(err)
		}
		defer pprof.StopCPUProfile()
	}

	c, err := openChild(ctx, o, &say)
	if err != nil {
		return say.fail(err)
	}
	defer c.close()
	if err := say.say(c.ready); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		r, err := c.respond(lines.Text())
		if err != nil {
			return say.fail(err)
		}
		if r.CPU, err = c.cpu(); err != nil {
			return err
		}
		if r.Peak, err = peakRSS(); err != nil {
			return err
		}
		if r.Traffic, err = c.traffic(); err != nil {
			return err
		}
		if err := say.say(r); err != nil {
			return err
		}
	}
	return nil
}

// child is what a process does in its role.
type child struct {
	ready   report
	respond answer
	cpu     func() (time.Duration, error)
	traffic func() (traffic, error)
	close   func()
}

func openChild(ctx context.Context, o order, say *speaker) (child, error) {
	switch o.Role {
	case "server":
		sys, err := systemNamed(o.System)
		if err != nil {
			return child{}, err
		}
		return openServer(sys.name(), func() (*runningServer, error) { return sys.start(ctx, o.Dir) })
	case "node":
		return openServer("node", func() (*runningServer, error) { return startNode(o) })
	}
	c, err := contestantNamed(o.Contestant)
	if err != nil {
		return child{}, err
	}
	opened := child{cpu: cpuTime, traffic: exchanged, close: func() {}}
	switch o.Role {
	case "produce":
		opened.respond = produceAnswer(ctx, c, o)
	case "work", "hold":
		work, err := workOf(c, o)
		if err != nil {
			return child{}, err
		}
		opened.respond = workAnswer(ctx, work, say)
	default:
		return child{}, fmt.Errorf("no child has the role %q", o.Role)
	}
	return opened, nil
}

func openServer(name string, start func() (*runningServer, error)) (child, error) {
	s, err := start()
	if err != nil {
		return child{}, fmt.Errorf("start %s: %w", name, err)
	}
	return child{
		ready: report{URL: s.url, Version: s.version, Durability: s.durability},
		respond: func(line string) (report, error) {
			if line != "usage" {
				return report{}, fmt.Errorf("a server does not know %q", line)
			}
			return usageOnly()
		},
		cpu:     s.cpu,
		traffic: s.measured,
		close:   s.stop,
	}, nil
}

// usageOnly answers with what the process has used, which runChild fills in.
func usageOnly() (report, error) { return report{End: time.Now()}, nil }

// produceAnswer submits everything on "go" and answers when all is accepted.
func produceAnswer(ctx context.Context, c Contestant, o order) answer {
	return func(line string) (report, error) {
		switch line {
		case "usage":
			return usageOnly()
		case "go":
			var start time.Time
			err := c.Produce(ctx, o.URL, func(yield func(Command) bool) {
				start = time.Now() // it is connected and asks for the first one
				commandsWith(cmp.Or(o.Payload, payloadSize), o.N, o.Rate)(yield)
			})
			return report{Start: start, End: time.Now()}, err
		}
		return report{}, fmt.Errorf("a producer does not know %q", line)
	}
}

// workAnswer starts to work on "go", answers at once, and stops on "stop". If
// the work ends before that, it reports this unasked.
func workAnswer(ctx context.Context, do func(context.Context) error, say *speaker) answer {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	work := func() {
		err := do(ctx)
		if ctx.Err() == nil {
			_ = say.fail(fmt.Errorf("the work ended early: %w", err)) // returned below
		}
		done <- err
	}
	return func(line string) (report, error) {
		switch line {
		case "usage":
			return usageOnly()
		case "go":
			start := time.Now()
			go work()
			return report{Start: start}, nil
		case "stop":
			stop()
			err := <-done
			return report{End: time.Now()}, err
		}
		return report{}, fmt.Errorf("a worker does not know %q", line)
	}
}
