//go:build linux || darwin

package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/tallyman-go/tallyman"
)

const execSupported = true

// process is one started program. Everything in it is owned by run, except
// where a comment says otherwise.
type process struct {
	cmd    *exec.Cmd
	pipes  *pipes
	exited chan struct{} // closed once the program is a zombie

	readers sync.WaitGroup
	writers sync.WaitGroup
	stdout  []byte // of the stdout reader until readers is done
	stderr  tail   // of the stderr reader until readers is done
	abort   context.CancelCauseFunc
	aborted context.Context // ends with the reason why the program has to be killed
}

// run starts the program, serves its pipes, ends it when it has to end, and
// returns when nothing of it is left.
func (e *Exec) run(ctx context.Context, claim *tallyman.Claim, save saveFunc, env ...string) (ending, error) {
	pipes, err := openPipes()
	if err != nil {
		return ending{}, fmt.Errorf("runner: %s: open pipes: %w", e.name(), err)
	}
	defer pipes.closeAll()

	p := &process{pipes: pipes, exited: make(chan struct{})}
	p.aborted, p.abort = context.WithCancelCause(context.Background())
	defer p.abort(nil)
	p.cmd = exec.Command(e.Argv[0], e.Argv[1:]...)
	p.cmd.Dir = e.Dir
	p.cmd.Env = append(environment(p.cmd.Environ(), e.Env, claim), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = pipes.stdin.child, pipes.stdout.child, pipes.stderr.child
	p.cmd.ExtraFiles = []*os.File{pipes.checkpoint.child, pipes.progress.child}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(p.cmd.SysProcAttr)
	if err := p.start(); err != nil {
		return ending{}, e.startError(err)
	}
	pipes.closeChild()

	saveCtx, endSaves := saveContext(ctx, e.killAfter()+saveGrace)
	defer endSaves()

	p.serve(e, saveCtx, claim, save)
	stopped := p.await(ctx, e.killAfter())
	p.kill(syscall.SIGKILL) // whoever is left of the group
	p.finish()

	end := ending{stdout: p.stdout, stderr: p.stderr.String(), stopped: stopped, aborted: context.Cause(p.aborted)}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		end.signal = fmt.Sprintf("signal %d (%v)", int(status.Signal()), status.Signal())
	}
	end.status = status.ExitStatus()
	return end, nil
}

// start starts the program on a goroutine that stays on its thread until the
// program has exited: the kernel sends the parent-death signal when the
// starting *thread* ends. The thread costs nothing extra, since it waits.
func (p *process) start() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		if err == nil {
			defer close(p.exited)
		}
		started <- err
		if err == nil && !awaitExit(p.cmd.Process.Pid) {
			// A system without the call: reap at once, which leaves a moment
			// in which the group's number might be given to somebody else.
			_ = p.cmd.Wait()
		}
	}()
	return <-started
}

func (e *Exec) startError(err error) error {
	hint := ""
	switch {
	case errors.Is(err, exec.ErrNotFound):
		hint = "; install it on this worker, put it into PATH, or give its path"
	case errors.Is(err, fs.ErrNotExist):
		hint = "; the program, the interpreter in its first line, or the working directory does not exist on this worker"
	case errors.Is(err, syscall.ENOEXEC):
		hint = "; a script has to begin with a line such as #!/bin/sh"
	case errors.Is(err, fs.ErrPermission):
		hint = "; make it executable (chmod +x)"
	}
	return startError{fmt.Errorf("runner: cannot start %q: %w%s", e.Argv[0], err, hint)}
}

// serve starts the goroutines at our end of the pipes.
func (p *process) serve(e *Exec, saveCtx context.Context, claim *tallyman.Claim, save saveFunc) {
	// The program need not read its input: EPIPE, or our own close, ends these.
	p.writers.Go(func() { feed(p.pipes.stdin.ours, claim.Payload()) })
	checkpoint := claim.Checkpoint()
	p.writers.Go(func() { feed(p.pipes.checkpoint.ours, checkpoint) })

	p.readers.Go(func() {
		var err error
		if p.stdout, err = readAtMost(newSource(p.pipes.stdout.ours), e.maxResult()); err != nil {
			p.abort(err)
		}
	})
	p.readers.Go(func() {
		p.stderr.log = stderrLog(e.Logger, claim)
		_, _ = io.Copy(&p.stderr, newSource(p.pipes.stderr.ours))
		p.stderr.flush()
	})
	p.readers.Go(func() {
		err := readProgress(newSource(p.pipes.progress.ours), func(offset uint64, state []byte) error {
			return save(saveCtx, offset, state)
		})
		if err != nil {
			p.abort(err)
		}
	})
}

// await returns when the program has exited or has to be killed, and says
// whether that is because ctx ended.
func (p *process) await(ctx context.Context, killAfter time.Duration) (stopped bool) {
	select {
	case <-p.exited:
		return false
	case <-p.aborted.Done():
		return false
	case <-ctx.Done():
	}
	select {
	case <-p.exited: // both at once; it had ended by itself
		return false
	default:
	}
	if errors.Is(context.Cause(ctx), tallyman.ErrLeaseLost) || killAfter == 0 {
		return true
	}
	p.kill(syscall.SIGTERM)
	grace := time.NewTimer(killAfter)
	defer grace.Stop()
	// A shell dies of the signal before the program that it waits for has
	// tidied up. The group is gone when nobody holds the pipes any more.
	idle := make(chan struct{})
	go func() { p.readers.Wait(); close(idle) }()
	for _, done := range []<-chan struct{}{p.exited, idle} {
		select {
		case <-done:
		case <-p.aborted.Done():
			return true
		case <-grace.C:
			return true
		}
	}
	return true
}

// kill signals the group. The leader has not been reaped yet, so its number
// cannot belong to anybody else. An empty group is no error.
func (p *process) kill(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

// finish collects what the dead group has left in the pipes, and reaps.
func (p *process) finish() {
	<-p.exited
	p.kill(syscall.SIGKILL) // again: a member may have been born meanwhile
	p.pipes.closeOurWriters()
	p.writers.Wait()
	p.pipes.stopReaders()
	p.readers.Wait()
	_ = p.cmd.Wait() // its error only repeats ProcessState
}
