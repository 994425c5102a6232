package cli

import (
	"context"
	"io"
)

// Until returns what in holds, until ctx ends: then reading fails with its
// cause. A read of a terminal or pipe cannot be interrupted, and whoever waits for
// one must not outlast a signal. One that is under way goes on in the background,
// and what it brings is lost.
func Until(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // of nil makes the end of the input; never fails
	}()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(context.Cause(ctx)) })
	return r
}
