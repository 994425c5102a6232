package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// A worker that was frozen or cut off has no pull open while the pool is spread
// anew, and comes back with the old number of shards. It must not act on it.
func TestWorker_OfAnotherLayout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to int }{{1, 3}, {3, 2}, {2, 5}} {
		t.Run(fmt.Sprintf("%d to %d", c.from, c.to), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			s := &scattered{nc: pooltest.Connect(t, pooltest.Server(t).URL()), receipts: map[string]tallyman.Receipt{}}
			old := pooltest.Create(t, s.nc, tallyman.Settings{Shards: c.from}, tallyman.Topology{})
			mux := &tallyman.Mux{}
			mux.Handle("echo", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
				t.Error("it ran")
				return tallyman.Result{}, nil
			}))
			late, err := old.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tallyman.Reshard(ctx, s.nc, "main", c.to, "ann"); err != nil {
				t.Fatal(err)
			}
			p := pooltest.Open(t, s.nc)
			const n = 30
			for i := range n {
				if _, err := p.Submit(ctx, tallyman.Command{ID: fmt.Sprintf("a-%d", i), Kind: "echo"}); err != nil {
					t.Fatal(err)
				}
			}
			want := tallyman.ErrSettings
			if c.from > c.to {
				want = tallyman.ErrNoPool // one of its streams is gone
			}
			if err := late.Run(ctx); !errors.Is(err, want) {
				t.Errorf("run: got %v, want %v", err, want)
			}
			stop := s.work(t, p, true)
			for i := range n {
				if _, err := p.Wait(ctx, fmt.Sprintf("a-%d", i)); err != nil {
					t.Fatal(err)
				}
			}
			pooltest.Await(t, ctx, "empty streams", func() bool { return pending(t, p) == 0 })
			stop()
			if r := s.audit(t, p, audit.Options{}); r.Completed != n || r.LastSeq != n {
				t.Errorf("got %d completed of %d sequences, want %d of both", r.Completed, r.LastSeq, n)
			}
		})
	}
}
