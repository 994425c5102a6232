//go:build linux || darwin

package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

// stopWhenReady runs the script and ends its context with cause as soon as it
// has written a progress line.
func stopWhenReady(t *testing.T, e *runner.Exec, cause error) (*tallyman.Claim, error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	claim := claimOf(tallyman.DetachedConfig{OnProgress: func(uint64, []byte) error {
		cancel(cause)
		return nil
	}})
	done := make(chan error, 1)
	go func() {
		_, err := e.Handle(ctx, claim)
		done <- err
	}()
	return claim, receive(t, "Handle's return", done)
}

func TestExec_Stop(t *testing.T) {
	t.Parallel()
	// The trap, and a grandchild that holds every pipe. The grandchild reports
	// readiness: a signal that meets it between fork and exec would be lost.
	const family = `exec 9>"$FIFO"; trap 'echo term >&9; echo 2 last words >&4; exit 0' TERM; sh -c 'echo 1 >&4; exec sleep 1000' & wait; wait`

	for _, cause := range []error{tallyman.ErrDraining, tallyman.ErrTimeout, tallyman.ErrCancelled} {
		t.Run(cause.Error()+": SIGTERM, last progress, and exit 0 does not count", func(t *testing.T) {
			t.Parallel()
			path, dead := fifo(t)
			e := shell(family)
			e.KillAfter, e.Env = hour, map[string]string{"FIFO": path}
			claim, err := stopWhenReady(t, e, cause)
			if !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
			if got, want := receive(t, "the death of the group", dead), "term\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got := string(claim.Checkpoint()); claim.Offset() != 2 || got != "last words" {
				t.Errorf("progress: got %d %q, want 2 %q", claim.Offset(), got, "last words")
			}
		})
	}

	t.Run("a program that ignores SIGTERM is killed after kill_after", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		e := shell("trap '' TERM; exec 9>" + path + "; sleep 1000 & echo 1 >&4; sleep 1000")
		e.KillAfter = time.Millisecond
		_, err := stopWhenReady(t, e, tallyman.ErrTimeout)
		if !errors.Is(err, tallyman.ErrTimeout) {
			t.Errorf("got %v, want %v", err, tallyman.ErrTimeout)
		}
		receive(t, "the death of the group", dead)
	})

	t.Run("a shell that dies first does not cut short the program it waits for", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		outer, outerDead := fifo(t)
		gate, open := gate(t)
		// Only the outer shell holds descriptor 8, and it does not catch the
		// signal. The inner one is in wait, which a trap interrupts; its child
		// holds nothing, should the signal meet it between fork and exec.
		e := shell(`exec 9>"$FIFO" 8>"$OUTER"
			sh -c 'trap "cat <\"$GATE\" >&9; exit" TERM; sleep 1000 >/dev/null 2>&1 4>&- 9>&- & echo 1 >&4; while :; do wait; done' 8>&-; :`)
		e.KillAfter, e.Env = hour, map[string]string{"FIFO": path, "OUTER": outer, "GATE": gate}
		opened := make(chan struct{})
		go func() {
			defer close(opened)
			<-outerDead
			open("tidied up\n")
		}()
		if _, err := stopWhenReady(t, e, tallyman.ErrDraining); !errors.Is(err, tallyman.ErrDraining) {
			t.Errorf("got %v, want %v", err, tallyman.ErrDraining)
		}
		if got, want := receive(t, "the death of the group", dead), "tidied up\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		receive(t, "the gate", opened)
	})

	t.Run("a negative KillAfter means SIGKILL at once", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		e := shell(family)
		e.KillAfter, e.Env = -1, map[string]string{"FIFO": path}
		if _, err := stopWhenReady(t, e, tallyman.ErrDraining); !errors.Is(err, tallyman.ErrDraining) {
			t.Errorf("got %v, want %v", err, tallyman.ErrDraining)
		}
		if got := receive(t, "the death of the group", dead); got != "" {
			t.Errorf("got %q, want nothing but SIGKILL", got)
		}
	})

	t.Run("a lost lease means SIGKILL at once, and no more progress", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		e := shell(family)
		e.KillAfter, e.Env = hour, map[string]string{"FIFO": path}
		claim, err := stopWhenReady(t, e, tallyman.ErrLeaseLost)
		if !errors.Is(err, tallyman.ErrLeaseLost) {
			t.Errorf("got %v, want %v", err, tallyman.ErrLeaseLost)
		}
		if got := receive(t, "the death of the group", dead); got != "" {
			t.Errorf("got %q, want nothing but SIGKILL", got)
		}
		if claim.Offset() != 1 {
			t.Errorf("offset: got %d, want 1", claim.Offset())
		}
	})

	t.Run("after a normal exit the rest of the group is killed", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		done := make(chan tallyman.Result, 1)
		go func() {
			got, err := shell("exec 9>"+path+"; trap '' TERM HUP; sleep 1000 & echo done").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		if got := string(receive(t, "Handle's return", done).Body); got != "done\n" {
			t.Errorf("got %q, want done", got)
		}
		receive(t, "the death of the grandchild", dead)
	})
}

// gate returns a named pipe and a function that writes to it, which blocks
// until somebody reads.
func gate(t *testing.T) (path string, write func(text string)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
}
