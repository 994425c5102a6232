package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a child seen from the parent. It serves one caller at a time.
type process struct {
	role    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report // closed when the child has said its last word
	ready   report      // what it said first
}

// stopTimeout is how long a server may take to end before it is killed.
const stopTimeout = 15 * time.Second

// startProcess starts a child and waits until it is ready. The child ends when
// ctx does; in any case the caller closes it.
func startProcess(ctx context.Context, o order) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	arg, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	argv := append(tracing(o.Trace), program, childCommand, string(arg))
	p := &process{role: o.Role, cmd: exec.CommandContext(ctx, argv[0], argv[1:]...)}
	if o.Role == "server" {
		// It ends as its standard input does, and sees to a server's own process.
		p.cmd.Cancel = func() error { return p.in.Close() }
		p.cmd.WaitDelay = stopTimeout
	}
	p.reports = make(chan report, 1)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Role, err)
	}
	go func() {
		defer close(p.reports)
		for dec := json.NewDecoder(out); ; {
			var r report
			if dec.Decode(&r) != nil {
				return
			}
			p.reports <- r
		}
	}()
	if p.ready, err = p.next(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// ask sends one line and returns the child's answer to it.
func (p *process) ask(ctx context.Context, line string) (report, error) {
	if _, err := fmt.Fprintln(p.in, line); err != nil && ctx.Err() == nil {
		return report{}, fmt.Errorf("ask %s to %s: %w", p.role, line, err)
	}
	return p.next(ctx)
}

func (p *process) next(ctx context.Context) (report, error) {
	r, ok := <-p.reports // closed at the latest when ctx ends and kills the child
	if err := context.Cause(ctx); err != nil {
		return report{}, fmt.Errorf("%s: %w", p.role, err)
	}
	return r, p.check(r, ok)
}

// check turns what was received from reports into an error, if it is one.
func (p *process) check(r report, ok bool) error {
	switch {
	case !ok:
		return fmt.Errorf("%s: the process ended early", p.role)
	case r.Error != "":
		return fmt.Errorf("%s: %s", p.role, r.Error)
	}
	return nil
}

// kill ends the child without a word, as a crash does, and waits for that.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.role, err)
	}
	p.close()
	return nil
}

// close ends the child and waits for it. Closing twice does nothing.
func (p *process) close() {
	p.in.Close()
	for range p.reports { // Wait must not close the pipe under its reader
	}
	_ = p.cmd.Wait() // what went wrong was said in a report
}
