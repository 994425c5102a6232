package runner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman"
)

func TestSaveContext(t *testing.T) {
	t.Parallel()

	t.Run("a program that was told to stop may save until its grace is over", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			saves, end := saveContext(ctx, 5*time.Second)
			defer end()
			cancel(tallyman.ErrDraining)
			synctest.Wait()
			if err := saves.Err(); err != nil {
				t.Errorf("at the stop: got %v, want a live context", err)
			}
			stopped := time.Now()
			<-saves.Done()
			if got, want := time.Since(stopped), 5*time.Second; got != want {
				t.Errorf("ended after %v, want %v", got, want)
			}
			if got := context.Cause(saves); !errors.Is(got, tallyman.ErrDraining) {
				t.Errorf("cause: got %v, want %v", got, tallyman.ErrDraining)
			}
		})
	})

	t.Run("nothing is saved without the lease", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			saves, end := saveContext(ctx, 5*time.Second)
			defer end()
			cancel(tallyman.ErrLeaseLost)
			synctest.Wait()
			if got := context.Cause(saves); !errors.Is(got, tallyman.ErrLeaseLost) {
				t.Errorf("cause: got %v, want %v", got, tallyman.ErrLeaseLost)
			}
		})
	})
}
