package tallyman_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// The refusal once waited for the claim's mutex, which Progress itself held.
func TestClaim_Progress_ReturnsWhenSomeoneElseOwnsTheCommand(t *testing.T) {
	p := newPool(t, tallyman.Settings{Lease: time.Minute})
	refused := make(chan error, 2)
	mux := &tallyman.Mux{}
	mux.Handle("taken", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if err := c.Progress(ctx, 1, nil); err != nil {
			return tallyman.Result{}, err
		}
		rec, err := p.Find(ctx, c.ID())
		if err != nil {
			return tallyman.Result{}, err
		}
		revision := rec.Revision
		rec.Owner = "someone else"
		body, err := kvstate.Encode(rec)
		if err != nil {
			return tallyman.Result{}, err
		}
		if err := p.Records().PutWait(ctx, command.Token(c.ID()), body, revision); err != nil {
			return tallyman.Result{}, err
		}
		refused <- c.Progress(context.WithoutCancel(ctx), 2, nil)
		refused <- context.Cause(ctx)
		return tallyman.Result{}, nil
	}))
	work(t, p, tallyman.WorkerConfig{Mux: mux})
	ctx := pooltest.Context(t)
	if _, err := p.Submit(ctx, tallyman.Command{ID: "c", Kind: "taken"}); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"progress", "the end of the handler's context"} {
		select {
		case err := <-refused:
			if !errors.Is(err, tallyman.ErrLeaseLost) {
				t.Errorf("%s of a command that someone else owns: got %v, want %v", what, err, tallyman.ErrLeaseLost)
			}
		case <-ctx.Done():
			t.Fatalf("%s of a command that someone else owns does not come", what)
		}
	}
}
