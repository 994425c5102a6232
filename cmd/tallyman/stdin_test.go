package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
)

// TestStdin_Interrupted interrupts every command that reads stdin, while stdin
// has no end.
func TestStdin_Interrupted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"decode"},
		{"digest"},
		{"resolve", "a", "--result-file", "-"},
		{"audit", "--against", "-"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			in, feed, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			defer feed.Close()
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), asCommand+"=1", "NATS_URL="+s.url, "TALLYMAN_POOL=main")
			cmd.Stdin = in
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stuck := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
			defer stuck.Stop()
			// More than the pipe holds: once it is written, the command reads.
			if _, err := feed.WriteString(strings.Repeat(strings.Repeat("x", 199)+"\n", 1<<10)); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it fails
			if got := cmd.ProcessState.ExitCode(); got != 1 {
				t.Errorf("got exit code %d, want 1", got)
			}
		})
	}
}
