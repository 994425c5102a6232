package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// newPool starts a server with a pool of its own.
func newPool(t testing.TB, settings tallyman.Settings) *tallyman.Pool {
	t.Helper()
	return pooltest.Create(t, connect(t, pooltest.Server(t).URL()), settings, tallyman.Topology{})
}

// work runs a worker until the test ends.
func work(t testing.TB, p *tallyman.Pool, cfg tallyman.WorkerConfig) *tallyman.Worker {
	t.Helper()
	w, err := p.NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Run(t, w.Run)
	return w
}

func TestPool_FromSubmissionToReceipt(t *testing.T) {
	p := newPool(t, tallyman.Settings{})
	var ran atomic.Int64
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	work(t, p, tallyman.WorkerConfig{Mux: mux})
	ctx := pooltest.Context(t)
	const n = 1000
	for i := range n {
		id := fmt.Sprintf("c-%d", i)
		sub, err := p.Submit(ctx, tallyman.Command{ID: id, Kind: "echo", Payload: []byte(id)})
		if err != nil || sub.Absorbed {
			t.Fatalf("submit %s: %+v, %v", id, sub, err)
		}
	}
	for i := range n {
		id := fmt.Sprintf("c-%d", i)
		r, err := p.Wait(ctx, id)
		if err != nil || string(r.Result) != id {
			t.Fatalf("wait %s: %+v, %v", id, r, err)
		}
	}
	if got := ran.Load(); got != n {
		t.Errorf("handler ran %d times, want %d", got, n)
	}
	sub, err := p.Submit(ctx, tallyman.Command{ID: "c-1", Kind: "echo", Payload: []byte("c-1")})
	if err != nil || !sub.Absorbed || sub.State != tallyman.Completed {
		t.Errorf("resubmit: %+v, %v; want absorbed, completed", sub, err)
	}
}

func TestConnect_NamesNoPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ urls, want string }{
		{"nats://joe:s3cret@127.0.0.1:1,tls://s3cret@127.0.0.1:2", "connect to nats://xxxxx@127.0.0.1:1,tls://xxxxx@127.0.0.1:2: "},
		{"joe:s3cret@127.0.0.1:1", "connect to xxxxx@127.0.0.1:1: "},
		{"nats://joe:s3cret%zz@127.0.0.1:1", "connect to nats://xxxxx@127.0.0.1:1: not a valid URL"},
		{"nats://joe:s3cret/x@127.0.0.1:1", "connect to nats://xxxxx@127.0.0.1:1: not a valid URL"},
		{"nats://127.0.0.1:1", "connect to nats://127.0.0.1:1: "},
	} {
		nc, err := tallyman.Connect(c.urls)
		if err == nil {
			nc.Close()
			t.Fatalf("%s: connected, want an error", c.urls)
		}
		if got := err.Error(); !strings.Contains(got, c.want) || strings.Contains(got, "s3cret") {
			t.Errorf("got %q, want %q and no password", got, c.want)
		}
	}
}

func TestOpen_WhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	gone := make(chan struct{})
	nc := connect(t, r.server.URL(), nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil { // not that of the test's own end
			close(gone)
		}
	}))
	r.server.Kill()
	<-gone
	opened := make(chan error, 1)
	go func() {
		p, err := tallyman.Open(r.ctx, nc, "main")
		if err == nil {
			err = p.Close()
		}
		opened <- err
	}()
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := <-opened; err != nil {
		t.Errorf("got %v, want the pool once the server is back", err)
	}
}

func TestCreate(t *testing.T) {
	t.Run("repeated without bounds, it leaves those of the pool", func(t *testing.T) {
		nc := connect(t, pooltest.Server(t).URL())
		js := pooltest.JetStream(t, nc)
		for _, c := range []struct {
			topology        tallyman.Topology
			bytes, commands int64
		}{
			{tallyman.Topology{MaxBytes: 1 << 20, MaxCommands: 100}, 1 << 20, 100},
			{tallyman.Topology{}, 1 << 20, 100},
			{tallyman.Topology{MaxBytes: -1, MaxCommands: 50}, -1, 50},
		} {
			if err := tallyman.Create(t.Context(), nc, "main", tallyman.Settings{}, c.topology); err != nil {
				t.Fatal(err)
			}
			str, err := js.Stream(t.Context(), stream.Name("main"))
			if err != nil {
				t.Fatal(err)
			}
			got := str.CachedInfo().Config
			if got.MaxBytes != c.bytes || got.MaxMsgs != c.commands || got.Replicas != 1 {
				t.Errorf("after %+v: got %d bytes, %d commands, %d replicas; want %d, %d, 1", c.topology, got.MaxBytes, got.MaxMsgs, got.Replicas, c.bytes, c.commands)
			}
		}
	})
	t.Run("what something else made is left as it is", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		bucket, err := r.js.CreateKeyValue(r.ctx, jetstream.KeyValueConfig{Bucket: "theirs", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		err = tallyman.Create(r.ctx, r.nc, "theirs", tallyman.Settings{}, tallyman.Topology{})
		if !errors.Is(err, kvstate.ErrForeign) {
			t.Errorf("a bucket: got %v, want %v", err, kvstate.ErrForeign)
		}
		if status, err := bucket.Status(r.ctx); err != nil || status.TTL() != time.Hour {
			t.Errorf("got %+v, %v; want the bucket as it was", status, err)
		}
		if _, err := r.js.CreateStream(r.ctx, jetstream.StreamConfig{Name: stream.Name("other"), Subjects: []string{"x"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
			t.Fatal(err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "other", tallyman.Settings{}, tallyman.Topology{}); !errors.Is(err, stream.ErrForeign) {
			t.Errorf("a stream: got %v, want %v", err, stream.ErrForeign)
		}
	})
	t.Run("a pool whose bucket was edited is still a pool", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		str, err := r.js.Stream(r.ctx, "KV_main")
		if err != nil {
			t.Fatal(err)
		}
		edited := str.CachedInfo().Config
		edited.Description = "ours"
		if _, err := r.js.UpdateStream(r.ctx, edited); err != nil {
			t.Fatal(err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
			t.Error(err)
		}
	})
}
