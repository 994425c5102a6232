// Package clitest runs a command as a process of its own in tests of that
// command: the test binary starts itself again as the command. Nothing else
// may import it. Its functions end the test if something cannot be done.
package clitest

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// asCommand tells the test binary to be the command.
const asCommand = "TALLYMAN_TEST_AS_COMMAND"

// patience bounds every wait; it only ends a broken run.
const patience = 60 * time.Second

// Main is called by TestMain before everything else.
func Main(main func()) {
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
}

// Process is a command that was started.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	stdout bytes.Buffer // read it after Wait
	stderr transcript
}

// Start starts the command in dir with an environment that names no server.
// It is killed at the end of the test if it still runs.
func Start(t testing.TB, dir string, stdin io.Reader, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(os.Args[0], args...), exited: make(chan struct{})}
	p.stderr.grown = make(chan struct{})
	p.cmd.Dir, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = dir, stdin, &p.stdout, &p.stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "NATS_") && !strings.HasPrefix(v, "TALLYMAN_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, asCommand+"=1")
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the exit code is in ProcessState
	}()
	t.Cleanup(func() {
		select {
		case <-p.exited:
		default:
			_ = p.cmd.Process.Kill() // it may just have ended
			<-p.exited
		}
		if t.Failed() {
			t.Logf("stderr of %v:\n%s", args, p.stderr.String())
		}
	})
	return p
}

// Run runs the command to its end.
func Run(t testing.TB, dir string, stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := Start(t, dir, stdin, args...)
	code = p.Wait(t)
	return code, p.stdout.String(), p.stderr.String()
}

// Wait returns the exit code, -1 if a signal ended the command.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("the command did not end; stderr:\n%s", p.stderr.String())
		return 0
	}
}

// Stdout returns what was printed. Call it after Wait.
func (p *Process) Stdout() string { return p.stdout.String() }

// Signal sends a signal.
func (p *Process) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// Line waits for a line on stderr that holds text and returns it.
func (p *Process) Line(t testing.TB, text string) string {
	t.Helper()
	bound := time.After(patience)
	for {
		all, grown := p.stderr.look()
		for line := range strings.Lines(all) {
			if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
				return line
			}
		}
		select {
		case <-grown:
		case <-p.exited:
			if all, _ := p.stderr.look(); strings.Contains(all, text) {
				continue
			}
			t.Fatalf("the command ended without saying %q", text)
		case <-bound:
			t.Fatalf("the command does not say %q", text)
		}
	}
}

// transcript is what a process has written so far.
type transcript struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // closed and replaced with each write
}

func (s *transcript) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(b)
	close(s.grown)
	s.grown = make(chan struct{})
	return len(b), nil
}

func (s *transcript) look() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String(), s.grown
}

func (s *transcript) String() string {
	all, _ := s.look()
	return all
}
