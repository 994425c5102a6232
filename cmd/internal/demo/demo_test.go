package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var binary string // of cmd/tallyman

func TestMain(m *testing.M) { os.Exit(build(m)) }

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tallyman-demo-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "tallyman.exe")
	if out, err := exec.Command("go", "build", "-o", binary, "../../tallyman").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cmd/tallyman: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// tally runs the demo and returns its exit code, stdout and stderr. It fails
// the test if the demo leaves anything behind in its temporary directory.
func tally(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	temp := t.TempDir()
	cmd := exec.CommandContext(ctx, binary, append([]string{"demo"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "TMP="+temp)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run demo: %v", err)
	}
	if ctx.Err() != nil {
		t.Fatalf("demo did not end in time\n%s", errs.String())
	}
	if left, _ := filepath.Glob(filepath.Join(temp, "*")); len(left) > 0 {
		t.Errorf("left behind: %q\n%s", left, errs.String())
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func files(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("sub %d", i%3), fmt.Sprintf("file_%d.txt", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Repeat(fmt.Sprintf("line %d\n", i), i*i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func balancedBooks(t *testing.T, args ...string) map[string]any {
	t.Helper()
	code, stdout, stderr := tally(t, append(args, "--json")...)
	if code != 0 {
		t.Fatalf("exit code: got %d, want 0\n%s%s", code, stdout, stderr)
	}
	var books map[string]any
	if err := json.Unmarshal([]byte(stdout), &books); err != nil {
		t.Fatalf("stdout is not one JSON object: %v\n%s", err, stdout)
	}
	return books
}

func expect(t *testing.T, books map[string]any, want map[string]any) {
	t.Helper()
	for key, w := range want {
		if n, ok := w.(int); ok {
			w = float64(n)
		}
		if got := books[key]; got != w {
			t.Errorf("%s: got %v, want %v (books: %v)", key, got, w, books)
		}
	}
}

func atLeast(t *testing.T, books map[string]any, want map[string]float64) {
	t.Helper()
	for key, w := range want {
		if got, _ := books[key].(float64); got < w {
			t.Errorf("%s: got %v, want at least %v (books: %v)", key, books[key], w, books)
		}
	}
}

func TestDemo_Books(t *testing.T) {
	t.Parallel()
	t.Run("balance after a kill and a freeze", func(t *testing.T) {
		t.Parallel()
		books := balancedBooks(t, "--dir", files(t, 40), "--workers", "2", "--kills", "1", "--freezes", "1")
		expect(t, books, map[string]any{
			"files": 40, "submitted": 48, "absorbed": 8, "completed": 40, "receipts": 40, "parked": 0,
			"lost": 0, "doubled": 0, "verified": 40, "kills": 1, "freezes": 1, "balanced": true,
		})
		atLeast(t, books, map[string]float64{"takeovers": 2, "refused": 1, "executions": 42, "seconds": 0.1})
	})
	t.Run("balance with one worker and one file that suffers everything", func(t *testing.T) {
		t.Parallel()
		books := balancedBooks(t, "--dir", files(t, 1), "--workers", "1", "--kills", "1", "--freezes", "1")
		expect(t, books, map[string]any{
			"files": 1, "submitted": 3, "absorbed": 2, "completed": 1, "receipts": 1,
			"lost": 0, "doubled": 0, "verified": 1, "kills": 1, "freezes": 1, "balanced": true,
		})
		// More where the machine stalls for longer than a lease.
		atLeast(t, books, map[string]float64{"takeovers": 2, "refused": 1, "executions": 3})
	})
	t.Run("say what happened to whom", func(t *testing.T) {
		t.Parallel()
		code, stdout, stderr := tally(t, "--dir", files(t, 20), "--workers", "2", "--kills", "1", "--freezes", "0")
		if code != 0 {
			t.Fatalf("exit code: got %d, want 0\n%s%s", code, stdout, stderr)
		}
		if want := "killed while it held"; !strings.Contains(stderr, want) {
			t.Errorf("stderr: got %q, want %q in it", stderr, want)
		}
		if want := "the books balance"; !strings.Contains(stdout, want) {
			t.Errorf("stdout: got %q, want %q in it", stdout, want)
		}
	})
}

func TestDemo_Usage(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"an empty directory is told plainly": {"--dir", t.TempDir()},
		"a directory must exist":             {"--dir", filepath.Join(t.TempDir(), "none")},
		"there must be a worker":             {"--workers", "0"},
		"faults are not negative":            {"--kills", "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := tally(t, args...)
			if code != 2 || stdout != "" || stderr == "" {
				t.Errorf("got exit code %d, stdout %q, stderr %q; want 2, nothing and a reason", code, stdout, stderr)
			}
		})
	}
}
