package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
)

// leaveTime is how long workers may take to end by themselves.
const leaveTime = 10 * time.Second

// crew is the worker processes of a run. It is used by one goroutine.
type crew struct {
	url, dir, state string
	delay           time.Duration
	members         []*member // in the order of their start, also those that ended
}

// member is one worker process.
type member struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	log    string // its stderr
	tail   tail
	ended  chan struct{} // closed when the process is gone
	killed bool
	frozen *frozen // nil unless it is
}

// frozen is why and since when a member is stopped.
type frozen struct {
	since time.Time
	id    string // the command that it holds
	taken bool   // another execution of it has begun
}

func (m *member) pid() int    { return m.cmd.Process.Pid }
func (m *member) awake() bool { return !m.killed && m.frozen == nil }

// hire starts one more worker process.
func (c *crew) hire() (*member, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	base := filepath.Join(c.state, fmt.Sprintf("worker-%d", len(c.members)+1))
	m := &member{log: base + ".log", tail: tail{path: base + ".effects"}, ended: make(chan struct{})}
	log, err := os.Create(m.log)
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	defer log.Close() // the process has its own
	m.cmd = exec.Command(exe, "demo-worker", "--url", c.url, "--dir", c.dir, "--effects", m.tail.path, "--delay", c.delay.String())
	m.cmd.Stderr = log
	m.cmd.SysProcAttr = attr()
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	started := make(chan error)
	go func() {
		// On Linux a child dies with the thread that started it, so that
		// thread stays as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait() // how it ended is asked of its state
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	c.members = append(c.members, m)
	return m, nil
}

// kill ends m without a word.
func (m *member) kill() {
	m.killed = true
	_ = m.cmd.Process.Kill() // fails only if it is gone
	<-m.ended
}

// goOn ends the pause of a handler.
func (m *member) goOn(id string) {
	_, _ = io.WriteString(m.stdin, id+"\n") // fails only if it is gone, which check sees
}

// check returns an error if a worker ended that nobody had killed.
func (c *crew) check() error {
	for _, m := range c.members {
		select {
		case <-m.ended:
			if !m.killed {
				return fmt.Errorf("worker %d ended unasked (%v); its log: %s", m.pid(), m.cmd.ProcessState, m.log)
			}
		default:
		}
	}
	return nil
}

// dismiss lets all workers finish and waits for them. Whoever does not end in
// time is killed.
func (c *crew) dismiss() error {
	for _, m := range c.members {
		_ = m.stdin.Close() // the sign to end
	}
	timer := time.NewTimer(leaveTime)
	defer timer.Stop()
	var failed error
	for _, m := range c.members {
		select {
		case <-m.ended:
		case <-timer.C:
			m.kill()
			failed = errors.Join(failed, fmt.Errorf("worker %d did not end within %v; its log: %s", m.pid(), leaveTime, m.log))
			timer.Reset(0)
		}
		if !m.killed && !m.cmd.ProcessState.Success() {
			failed = errors.Join(failed, fmt.Errorf("worker %d failed (%v); its log: %s", m.pid(), m.cmd.ProcessState, m.log))
		}
	}
	return failed
}

// end kills what is left, frozen or not.
func (c *crew) end() {
	var gone sync.WaitGroup
	for _, m := range c.members {
		gone.Go(m.kill)
	}
	gone.Wait()
}
