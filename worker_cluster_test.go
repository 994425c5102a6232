package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// newClusterRig starts a cluster of three nodes with a pool on three replicas.
func newClusterRig(t *testing.T, settings tallyman.Settings) (*rig, *embedded.Cluster) {
	t.Helper()
	c := pooltest.Cluster(t)
	ctx := pooltest.Context(t)
	r := &rig{nc: connect(t, c.URL()), ctx: ctx}
	r.js = pooltest.JetStream(t, r.nc)
	pooltest.Make(t, ctx, r.nc, settings, tallyman.Topology{Replicas: 3})
	r.Pool = open(t, r.nc)
	return r, c
}

// consumer returns the state of the queue's consumer once a leader answers.
func (r *rig) consumer(t *testing.T) *jetstream.ConsumerInfo {
	t.Helper()
	var info *jetstream.ConsumerInfo
	eventually(t, r.ctx, "the consumer's leader", func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		c, err := r.js.Consumer(ctx, stream.Name("main"), "default")
		if err != nil {
			return false
		}
		info = c.CachedInfo()
		return info.Cluster == nil || info.Cluster.Leader != ""
	})
	return info
}

// At the delivery limit of the server a message stays in the stream, where
// nobody gets it any more (nats-server#5564), or is lost (nats-server#7817).
// Here the worker bounds the attempts.
func TestWorker_ParksAtTheAttemptLimitOnThreeReplicas(t *testing.T) {
	t.Parallel()
	settings := tallyman.Settings{Lease: 5 * time.Second, MaxAttempts: 3, BackoffMin: 300 * time.Millisecond, BackoffMax: 500 * time.Millisecond}
	const n = 20
	for _, killed := range []bool{false, true} {
		name := "undisturbed"
		if killed {
			name = "with the consumer's leader killed in the middle"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, cluster := newClusterRig(t, settings)
			retried := make(chan struct{}, 1)
			start(t, r.Pool, tallyman.WorkerConfig{
				Mux: handle("fail", func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
					return tallyman.Result{}, errBroken
				}),
				Observe: func(e tallyman.Event) {
					if e.Type == tallyman.EventRetried && e.Attempt == 2 {
						select {
						case retried <- struct{}{}:
						default:
						}
					}
				},
			})
			for i := range n {
				r.submit(t, tallyman.Command{ID: fmt.Sprint("p-", i), Kind: "fail", Payload: fmt.Append(nil, "payload ", i)})
			}
			if killed {
				select {
				case <-retried:
				case <-r.ctx.Done():
					t.Fatal("no second attempt failed")
				}
				leader := r.consumer(t).Cluster.Leader
				node, err := strconv.Atoi(leader[strings.LastIndexByte(leader, '-')+1:])
				if err != nil {
					t.Fatalf("the leader is %q: %v", leader, err)
				}
				cluster.Kill(node)
			}
			for i := range n {
				id := fmt.Sprint("p-", i)
				if got, err := r.Wait(r.ctx, id); !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExhausted {
					t.Errorf("%s: got %+v, %v; want it parked as exhausted", id, got, err)
				}
			}
			r.emptied(t)
			eventually(t, r.ctx, "a consumer that has nothing left", func() bool {
				info := r.consumer(t)
				return info.NumPending == 0 && info.NumAckPending == 0
			})
			for i := range n {
				id, want := fmt.Sprint("p-", i), fmt.Sprint("payload ", i)
				rec := r.record(t, id, parked)
				if rec.Attempt != settings.MaxAttempts || rec.Error == "" {
					t.Errorf("%s: got attempt %d with error %q, want %d and an error", id, rec.Attempt, rec.Error, settings.MaxAttempts)
				}
				if c := rec.Command; c == nil || c.ID != id || c.Kind != "fail" || string(c.Payload) != want {
					t.Errorf("%s: the record holds the command %+v, want the whole of it with %q", id, c, want)
				}
			}
		})
	}
}
