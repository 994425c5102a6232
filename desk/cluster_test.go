package desk

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// TestDesk_OnThreeReplicas does on a cluster what the other tests do on one node.
func TestDesk_OnThreeReplicas(t *testing.T) {
	t.Parallel()
	nc := pooltest.Connect(t, pooltest.Cluster(t).URL())
	p := pooltest.Create(t, nc, brisk, tallyman.Topology{Replicas: 3})
	r := &rig{Pool: p, desk: New(p.Commands(), p.Records()), nc: nc, ctx: pooltest.Context(t)}

	const n = 50
	for i := range n {
		r.placed(t, tallyman.Command{ID: fmt.Sprintf("c-%d", i), Kind: "echo"}, kvstate.ReasonExhausted)
	}
	r.submit(t, tallyman.Command{ID: "pending", Kind: "echo"})
	if out, err := r.desk.Cancel(r.ctx, ann, "pending"); err != nil || out.Left != nil {
		t.Errorf("cancel: got %+v, %v", out, err)
	}
	if _, err := r.Commands().Get(r.ctx, n+1); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("the cancelled command: got %v, want it gone", err)
	}
	if out, err := r.desk.Cancel(r.ctx, ann, "pending"); err != nil || !out.Already || out.Left != nil {
		t.Errorf("cancel again: got %+v, %v", out, err)
	}
	until, err := r.desk.Pause(r.ctx, ann, "default", 0)
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Make(t, r.ctx, nc, tallyman.Settings{}, tallyman.Topology{})
	if q, err := r.Commands().Queue(r.ctx, "default"); err != nil || !q.PausedUntil.Equal(until) {
		t.Errorf("got %+v, %v, want it paused until %v", q, err, until)
	}
	if counts, err := r.desk.RequeueMany(r.ctx, ann, Bulk{Filter: Filter{Kind: "echo"}}); err != nil || counts != (Counts{Matched: n, Done: n}) {
		t.Errorf("requeue: got %+v, %v", counts, err)
	}
	if err := r.desk.Resume(r.ctx, ann, "default"); err != nil {
		t.Fatal(err)
	}
	r.work(t, newSeen(false))
	r.emptied(t)
	if got := r.balanced(t); got.Completed != n || got.Cancelled != 1 || got.LastSeq != 2*n+1 {
		t.Errorf("got %+v, want %d completed", got, n)
	}
}
