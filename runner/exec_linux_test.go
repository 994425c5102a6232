package runner_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tallyman-go/tallyman"
)

func TestExec_Escape(t *testing.T) {
	t.Parallel()
	t.Run("a process that left the group and holds every pipe does not hold up Handle", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		ready, _ := gate(t)
		end, open := gate(t)
		e := shell(`exec 9>"$FIFO"; setsid sh -c 'echo up >"$READY"; cat <"$END" >/dev/null' & cat <"$READY"; echo "3 last" >&4; exit 4`)
		e.Env = map[string]string{"FIFO": path, "READY": ready, "END": end}
		claim := claimOf(tallyman.DetachedConfig{})
		done := make(chan error, 1)
		go func() {
			_, err := e.Handle(t.Context(), claim)
			done <- err
		}()
		wantError(t, receive(t, "Handle's return", done), "retry", "exit status 4")
		if got := string(claim.Checkpoint()); got != "last" {
			t.Errorf("checkpoint: got %q, want last", got)
		}
		select {
		case <-dead:
			t.Error("the escaped process is dead, so this test has shown nothing")
		default:
		}
		open("end\n")
		receive(t, "the end of the escaped process", dead)
	})
}

func TestExec_WorkerKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(os.Args[0])
	worker.Env = append(os.Environ(), workerScript+`=exec 9>"`+path+`"; echo up >&9; exec sleep 1000`)
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path) // returns when the program has opened its end
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	if got, err := lines.ReadString('\n'); err != nil || got != "up\n" {
		t.Fatalf("got %q, %v; want up", got, err)
	}
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	dead := make(chan error, 1)
	go func() {
		_, err := lines.ReadByte()
		dead <- err
	}()
	receive(t, "the death of the program after its worker's", dead)
}

// Not parallel: it counts the descriptors of the whole process.
func TestExec_Descriptors(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run := func() {
		_, err := shell("exec sleep 1000 </dev/null & exit 3").Handle(t.Context(), claimOf(tallyman.DetachedConfig{Checkpoint: make([]byte, 1<<20)}))
		wantError(t, err, "retry", "exit status 3")
		_, err = (shell("x")).Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "exit status 127")
		gone := shell("x")
		gone.Argv = []string{"/gone"}
		_, err = gone.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "cannot start")
	}
	run()
	want := count()
	for range 10 {
		run()
	}
	if got := count(); got > want {
		t.Errorf("descriptors: got %d after ten more runs, want %d", got, want)
	}
}
