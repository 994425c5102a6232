//go:build unix

package demo_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var started = regexp.MustCompile(`worker (\d+) started`)

func TestDemo_Interrupt(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), binary, "demo", "--dir", files(t, 30), "--workers", "2", "--kills", "0", "--freezes", "1")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	frozen := regexp.MustCompile(`frozen while it held`)
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if m := started.FindStringSubmatch(lines.Text()); m != nil {
			pid, _ := strconv.Atoi(m[1])
			pids = append(pids, pid)
		}
		if frozen.MatchString(lines.Text()) {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // its exit code is looked at below
	if got, want := cmd.ProcessState.ExitCode(), 1; got != want {
		t.Errorf("exit code: got %d, want %d", got, want)
	}
	if got, want := len(pids), 2; got != want {
		t.Fatalf("workers: got %d, want %d", got, want)
	}
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("worker %d is still there", pid)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// gone waits, for a while, until there is no such process.
func gone(pid int) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		if syscall.Kill(pid, 0) != nil {
			return true
		}
	}
	return false
}
