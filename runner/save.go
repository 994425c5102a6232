package runner

import (
	"context"
	"errors"
	"time"

	"github.com/tallyman-go/tallyman"
)

// saveContext returns the context for saving progress. It outlives ctx by
// grace, so that the last words of a program that was told to stop are kept;
// but without the lease nothing may be saved any more. Call end when done.
func saveContext(ctx context.Context, grace time.Duration) (saves context.Context, end func()) {
	saves, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.Is(cause, tallyman.ErrLeaseLost) {
			cancel(cause)
			return
		}
		timer := time.AfterFunc(grace, func() { cancel(cause) })
		context.AfterFunc(saves, func() { timer.Stop() })
	})
	return saves, func() {
		stop()
		cancel(nil)
	}
}
