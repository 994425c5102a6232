//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is one that a test started, and waits for.
type process struct {
	cmd   *exec.Cmd
	pid   int
	stdin io.Closer // the process ends when this is closed
	ended chan struct{}
}

func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	p := &process{cmd: cmd, pid: cmd.Process.Pid, stdin: stdin, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process by SIGKILL, frozen or not, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended
	<-p.ended
}

func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("signal %v to process %d: %v", s, p.pid, err)
	}
}

// freeze stops the process and returns when the kernel says that it stands.
func (p *process) freeze(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	await(t, "the process to stand still", func() bool { return p.state(t) == 'T' || !p.alive() })
}

func (p *process) thaw(t *testing.T) { t.Helper(); p.signal(t, syscall.SIGCONT) }

// state returns the kernel's letter for the state of the process, T for stopped.
func (p *process) state(t *testing.T) byte {
	t.Helper()
	pid := strconv.Itoa(p.pid)
	if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil {
		// The name before it stands in brackets and may hold anything.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
			return stat[i+2]
		}
	}
	out, _ := exec.Command("ps", "-o", "state=", "-p", pid).Output() // fails once it has ended
	if out = bytes.TrimSpace(out); len(out) > 0 {
		return out[0]
	}
	return 0
}

// waitEnd waits until the process has ended by itself.
func (p *process) waitEnd(t *testing.T, why string) *os.ProcessState {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("process %d has not ended: %s", p.pid, why)
	}
	return p.cmd.ProcessState
}

func (p *process) wasKilled() bool {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// startServer starts a server process on a store, and returns once it listens.
func startServer(t *testing.T, dir, listen string, env ...string) (*process, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverDirEnv+"="+filepath.Join(dir, "store"), serverListenEnv+"="+listen)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = appendTo(t, filepath.Join(dir, "server.log"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	p := launch(t, cmd)
	w.Close() // the process has its own
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "server.log"))
		t.Fatalf("server does not start: %v\n%s", err, log)
	}
	return p, strings.TrimSpace(line)
}

func appendTo(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// patience bounds every wait for something that is sure to come. It is no
// measure of anything: only a failing test waits for that long.
const patience = 2 * time.Minute

// await polls until cond holds.
func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
		<-tick.C
	}
}
