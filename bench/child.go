package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// childCommand is the hidden first argument with which the program executes
// itself; the second one is an order in JSON.
const childCommand = "child"

// order tells a child what it is.
type order struct {
	Role       string `json:"role"` // server, produce or work
	Dir        string `json:"dir,omitempty"`
	URL        string `json:"url,omitempty"`
	Contestant string `json:"contestant,omitempty"`
	N          int    `json:"n,omitempty"`
	Rate       int    `json:"rate,omitempty"`    // commands per second; 0: as fast as possible
	Profile    string `json:"profile,omitempty"` // file for a CPU profile of the whole life
}

// report is a child's answer to one line of its standard input, and the
// first one, unasked, says that it is ready.
type report struct {
	Error string `json:"error,omitempty"`
	// of a server that is ready
	URL        string `json:"url,omitempty"`
	Version    string `json:"version,omitempty"`
	Durability string `json:"durability,omitempty"`
	// of the work that the line asked for
	Start time.Time     `json:"start,omitzero"`
	End   time.Time     `json:"end,omitzero"`
	CPU   time.Duration `json:"cpu,omitempty"` // since the process began
	Peak  int64         `json:"peak,omitempty"`
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

	ready, respond, closeChild, err := openChild(ctx, o, &say)
	if err != nil {
		return say.fail(err)
	}
	defer closeChild()
	if err := say.say(ready); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		r, err := respond(lines.Text())
		if err != nil {
			return say.fail(err)
		}
		if r.CPU, err = cpuTime(); err != nil {
			return err
		}
		if r.Peak, err = peakRSS(); err != nil {
			return err
		}
		if err := say.say(r); err != nil {
			return err
		}
	}
	return nil
}

func openChild(ctx context.Context, o order, say *speaker) (report, answer, func(), error) {
	if o.Role == "server" {
		return openServer(o.Dir)
	}
	c, err := contestantNamed(o.Contestant)
	if err != nil {
		return report{}, nil, nil, err
	}
	nc, err := nats.Connect(o.URL, nats.Name("bench "+o.Role))
	if err != nil {
		return report{}, nil, nil, fmt.Errorf("connect to %s: %w", o.URL, err)
	}
	switch o.Role {
	case "produce":
		return report{}, produceAnswer(ctx, c, nc, o), nc.Close, nil
	case "work":
		return report{}, workAnswer(ctx, c, nc, say), nc.Close, nil
	}
	nc.Close()
	return report{}, nil, nil, fmt.Errorf("no child has the role %q", o.Role)
}

// usageOnly answers with what the process has used, which runChild fills in.
func usageOnly() (report, error) { return report{End: time.Now()}, nil }

// produceAnswer submits everything on "go" and answers when all is accepted.
func produceAnswer(ctx context.Context, c Contestant, nc *nats.Conn, o order) answer {
	return func(line string) (report, error) {
		switch line {
		case "usage":
			return usageOnly()
		case "go":
			start := time.Now()
			err := c.Produce(ctx, nc, commandsOf(o.N, o.Rate))
			return report{Start: start, End: time.Now()}, err
		}
		return report{}, fmt.Errorf("a producer does not know %q", line)
	}
}

// workAnswer starts to work on "go", answers at once, and stops on "stop". If
// the work ends before that, it reports this unasked.
func workAnswer(ctx context.Context, c Contestant, nc *nats.Conn, say *speaker) answer {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	work := func() {
		err := c.Work(ctx, nc)
		if ctx.Err() == nil {
			say.fail(fmt.Errorf("the work ended early: %w", err))
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

// openServer runs a standalone server with file storage in dir and the
// default sync interval.
func openServer(dir string) (report, answer, func(), error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench",
		Host:       "127.0.0.1",
		Port:       server.RANDOM_PORT,
		JetStream:  true,
		StoreDir:   dir,
		NoSigs:     true,
	})
	if err != nil {
		return report{}, nil, nil, fmt.Errorf("create server: %w", err)
	}
	s.SetLoggerV2(stderrLogger{}, false, false, false)
	s.Start()
	closeServer := func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(10 * time.Second) {
		closeServer()
		return report{}, nil, nil, errors.New("the server was not ready within 10 s")
	}
	ready := report{URL: s.ClientURL(), Version: server.VERSION, Durability: durability(s.JetStreamConfig())}
	respond := func(line string) (report, error) {
		if line != "usage" {
			return report{}, fmt.Errorf("a server does not know %q", line)
		}
		return usageOnly()
	}
	return ready, respond, closeServer, nil
}

// durability says in words what an acknowledged message survives.
func durability(c *server.JetStreamConfig) string {
	if c.SyncAlways {
		return "file storage, R1, fsync before every ack: survives a power cut"
	}
	return fmt.Sprintf("file storage, R1, fsync every %v: survives a killed process, not a power cut", c.SyncInterval)
}

// stderrLogger shows what a server complains of and drops the rest.
type stderrLogger struct{}

func (stderrLogger) Noticef(string, ...any) {}
func (stderrLogger) Debugf(string, ...any)  {}
func (stderrLogger) Tracef(string, ...any)  {}
func (stderrLogger) Warnf(f string, a ...any) {
	fmt.Fprintf(os.Stderr, "server: "+f+"\n", a...)
}
func (l stderrLogger) Errorf(f string, a ...any) { l.Warnf(f, a...) }
func (l stderrLogger) Fatalf(f string, a ...any) { l.Warnf(f, a...) }
