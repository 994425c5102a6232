//go:build unix

package facts

import (
	"context"
	"errors"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// In Go 1.26.0 the cause did not match context.Canceled; a later patch release
// (1.26.8 at the latest) made it match. What holds in all of them is tested.
//
// Not parallel: it sends a signal to the whole process.
func TestFact17_AShutdownIsToldByErr(t *testing.T) {
	const decision = "\n\tdecision that rests on this: a shutdown is told by ctx.Err(); the cause only names the signal in a log"
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGUSR1)
	defer stop()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if got := ctx.Err(); !errors.Is(got, context.Canceled) {
		t.Errorf("Err: got %v, want %v"+decision, got, context.Canceled)
	}
	if got, want := context.Cause(ctx).Error(), syscall.SIGUSR1.String(); !strings.Contains(got, want) {
		t.Errorf("Cause: got %q, want it to name the signal, %q"+decision, got, want)
	}
}
