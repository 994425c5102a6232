package main

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	got, err := parseStat("42 (a ) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5")
	if want := (processStat{parent: 7, cpu: 100 * clockTick}); err != nil || got != want {
		t.Errorf("parseStat = %+v, %v, want %+v", got, err, want)
	}
	if _, err := parseStat("42 (short) S 7"); err == nil {
		t.Error("a line with too few fields was read")
	}
}

func TestBelow(t *testing.T) {
	t.Parallel()
	stats := map[int]processStat{1: {}, 7: {parent: 1}, 8: {parent: 7}, 9: {parent: 8}, 10: {parent: 1}, 11: {parent: 99}}
	if got, want := below(7, stats), []int{7, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("below(7) = %v, want %v", got, want)
	}
}

func TestTreeCPU(t *testing.T) {
	t.Parallel()
	t.Run("children that were waited for count", func(t *testing.T) {
		t.Parallel()
		// A shell that has burnt its time in a child, and lives on.
		cmd := exec.Command("sh", "-c", "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); echo done; read -r _")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer in.Close()
		if _, err := out.Read(make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if got, err := treeCPU(cmd.Process.Pid); err != nil || got < clockTick {
			t.Errorf("treeCPU = %v, %v, want at least %v", got, err, clockTick)
		}
	})
	t.Run("a process that is gone is an error", func(t *testing.T) {
		t.Parallel()
		if got, err := treeCPU(1 << 30); err == nil {
			t.Errorf("treeCPU = %v, want an error", got)
		}
		if _, err := treeCPU(os.Getpid()); err != nil {
			t.Errorf("treeCPU of this process: %v", err)
		}
	})
}
