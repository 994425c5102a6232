package runner_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

// workerScript makes the test binary a worker that runs the script; tests use
// it where the worker itself has to be killed.
const workerScript = "RUNNER_TEST_WORKER_SCRIPT"

func TestMain(m *testing.M) {
	if script := os.Getenv(workerScript); script != "" {
		e := &runner.Exec{Argv: []string{"/bin/sh", "-c", script}}
		_, err := e.Handle(context.Background(), tallyman.Detached(tallyman.DetachedConfig{}))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// verdictOf spells the verdict that an error carries.
func verdictOf(err error) string {
	if err == nil {
		return "complete"
	}
	v := findVerdict(err)
	if v == nil {
		return "retry"
	}
	switch v.Action {
	case tallyman.ActPark:
		return "park " + string(v.Reason)
	case tallyman.ActRetry:
		return fmt.Sprintf("retry after %v", v.Delay)
	}
	return fmt.Sprintf("action %d", v.Action)
}

func findVerdict(err error) *tallyman.Verdict {
	v := tallyman.VerdictOf(err)
	if v.Action == tallyman.ActRetry && !v.Fixed || v.Action == tallyman.ActAbandon {
		return nil // it carries none; what a stop means is for its cause to say
	}
	return &v
}

func claimOf(cfg tallyman.DetachedConfig) *tallyman.Claim {
	if cfg.Command.ID == "" {
		cfg.Command.ID, cfg.Command.Kind, cfg.Command.Queue = "img-7", "resize", "default"
	}
	return tallyman.Detached(cfg)
}

func wantError(t *testing.T, err error, verdict string, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	if got := verdictOf(err); got != verdict {
		t.Errorf("verdict: got %q, want %q (error: %v)", got, verdict, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error: got %q, want it to contain %q", err, part)
		}
	}
}

// receive waits for something that must come; the bound only ends a broken run.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}
