package stream_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/stream"
)

// newReplicated starts a cluster with a command stream of three replicas that
// holds n commands. What is lost on the way does not come again during a test.
func newReplicated(t *testing.T, n int) *stream.Stream {
	t.Helper()
	nc, err := nats.Connect(pooltest.Cluster(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := pooltest.JetStream(t, nc)
	cfg := stream.Config{Pool: "main", Replicas: 3, Lease: time.Hour}
	eventually(t, "the stream to be made", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err = stream.Create(ctx, js, cfg)
		return err == nil
	})
	s := openStream(t, js, pipeline.Config{Timeout: time.Minute})
	for i := range n {
		if err := publish(t, s, fmt.Sprint("c-", i)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// A replicated consumer says "Batch Completed" before the deliveries of that
// batch, which wait for a majority. None of them may be lost for a lease.
func TestFetcher_DeliveriesAfterTheEndOfTheirPull(t *testing.T) {
	t.Parallel()
	const n, want = 500, 20
	s := newReplicated(t, n)
	var mu sync.Mutex
	got := map[uint64]uint64{} // attempts by sequence
	f := s.NewFetcher(stream.FetchConfig{
		Queue: "default", Expires: time.Minute, Want: func() (int, bool) { return want, false },
		Deliver: func(batch []*stream.Delivery) {
			mu.Lock()
			defer mu.Unlock()
			for _, d := range batch {
				got[d.Seq] = d.Attempts
			}
		},
		Notice: func(err error) { t.Log("notice:", err) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	eventually(t, "every command to arrive", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == n
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for seq, attempts := range got {
		if attempts != 1 {
			t.Errorf("sequence %d arrived at delivery %d, want the first", seq, attempts)
		}
	}
}
