package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// startTimeout is how long a server may take to answer.
const startTimeout = time.Minute

// system is a kind of server that contestants run on.
type system interface {
	// name is what orders and the report call it.
	name() string
	// missing says what this machine lacks to run it, and how to get it; it is
	// empty where nothing is lacking.
	missing() string
	// start runs a private server on a free port of the loopback, whose files
	// all lie in dir.
	start(ctx context.Context, dir string) (*runningServer, error)
}

// runningServer is a server that answers.
type runningServer struct {
	url        string
	version    string
	durability string // what survives once the server has acknowledged it
	cpu        func() (time.Duration, error)
	traffic    func() (traffic, error) // nil where it is not measured
	stop       func()
}

func (s *runningServer) measured() (traffic, error) {
	if s.traffic == nil {
		return traffic{}, nil
	}
	return s.traffic()
}

func systems() []system {
	return []system{
		jetStream{}, jetStream{sync: true}, cluster{}, cluster{sync: true},
		postgres{}, redisServer{}, redisServer{sync: true},
	}
}

func systemNamed(name string) (system, error) {
	for _, s := range systems() {
		if s.name() == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("no system is named %q", name)
}

// program is a server's own process, a child of this one.
type program struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has been waited for
	err   error         // of that wait
}

// startProgram starts cmd with its output in a file in dir.
func startProgram(cmd *exec.Cmd, dir string) (*program, error) {
	p := &program{cmd: cmd, log: filepath.Join(dir, "log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Not even a killed parent leaves it behind.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// answers tries until the program serves its first caller.
func (p *program) answers(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended by itself: %w\n%s", p.err, endOf(p.log))
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w\n%s", errors.Join(ctx.Err(), err), endOf(p.log))
		case <-tick.C:
		}
	}
}

// stop ends the program by a signal and waits for it.
func (p *program) stop(sig os.Signal) {
	_ = p.cmd.Process.Signal(sig) // it may be gone
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill() // its children end with it
		<-p.ended
	}
}

func (p *program) cpu() (time.Duration, error) { return treeCPU(p.cmd.Process.Pid) }

// endOf returns the last lines of a log, for an error.
func endOf(file string) []byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	if len(text) > 2000 {
		text = text[len(text)-2000:]
	}
	return bytes.TrimSpace(text)
}

// freePort returns a port of the loopback that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
