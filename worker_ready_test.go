package tallyman_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/stream"
)

// A worker that is connected and gets nothing looked healthy: celery#8030,
// nats.go#1729. Its consumer deleted under it: nats.go#1621.
func TestWorker_ReadyFailsWhenPullsFail(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	log := &transcript{}
	w, _ := start(t, r.Pool, tallyman.WorkerConfig{
		Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	eventually(t, r.ctx, "the worker to be ready", func() bool { return w.Ready(r.ctx) == nil })
	if err := r.js.DeleteConsumer(r.ctx, stream.Name("main"), "default"); err != nil {
		t.Fatal(err)
	}
	const remedy = "tallyman init --pool main --queue default"
	var why error
	eventually(t, r.ctx, "word of the missing queue", func() bool {
		why = w.Ready(r.ctx)
		return errors.Is(why, stream.ErrNoQueue)
	})
	for _, part := range []string{`queue "default"`, "deleted", remedy} {
		if !strings.Contains(why.Error(), part) {
			t.Errorf("got %q, want it to say %q", why, part)
		}
	}
	if !log.has(remedy) {
		t.Errorf("the log does not name the remedy %q", remedy)
	}
	// It stays so for as long as nobody acts, though the connection is fine.
	r.submit(t, tallyman.Command{ID: "meanwhile", Kind: "echo"})
	eventually(t, r.ctx, "a pull that finds no consumer", func() bool {
		why = w.Ready(r.ctx)
		return why != nil && strings.Contains(why.Error(), "does not exist")
	})
	if !errors.Is(why, stream.ErrNoQueue) || !strings.Contains(why.Error(), remedy) {
		t.Errorf("got %v, want that the queue is missing, and %q", why, remedy)
	}
	if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(r.ctx, "meanwhile"); err != nil {
		t.Errorf("with the queue back: %v", err)
	}
	eventually(t, r.ctx, "the worker to be ready again", func() bool { return w.Ready(r.ctx) == nil })
	if !log.has("fetching again") {
		t.Error("the log does not say that it works again")
	}
}

// A stream or a bucket that is deleted under a worker is named, with the remedy,
// and once it is there again the worker works.
func TestWorker_OneShardIsDeleted(t *testing.T) {
	t.Parallel()
	for what, asset := range map[string]string{"stream": "main_2_commands", "bucket": "KV_main_2"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			settings := brisk
			settings.Shards = 3
			r := newRig(t, settings, tallyman.Topology{})
			log := &transcript{}
			w, _ := start(t, r.Pool, tallyman.WorkerConfig{
				Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			eventually(t, r.ctx, "the worker to be ready", func() bool { return w.Ready(r.ctx) == nil })
			if err := r.js.DeleteStream(r.ctx, asset); err != nil {
				t.Fatal(err)
			}
			var why error
			named := func() bool {
				why = w.Ready(r.ctx)
				return why != nil && strings.Contains(why.Error(), "does not exist") && strings.Contains(why.Error(), "main_2") && strings.Contains(why.Error(), "tallyman init --pool main")
			}
			eventually(t, r.ctx, "word of what is gone, with the remedy", named)
			if !errors.Is(why, tallyman.ErrNoPool) && !errors.Is(why, stream.ErrNoStream) {
				t.Errorf("got %v, want it to match what it says", why)
			}
			if err := tallyman.Create(r.ctx, r.nc, "main", settings, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, r.ctx, "the worker to be ready again", func() bool { return w.Ready(r.ctx) == nil })
			id := ""
			for i := 0; id == ""; i++ {
				if some := fmt.Sprint("c-", i); r.ShardOf(command.Token(some)).Index == 2 {
					id = some
				}
			}
			r.submit(t, tallyman.Command{ID: id, Kind: "echo"})
			if got, err := r.Wait(r.ctx, id); err != nil || got.State != tallyman.Completed {
				t.Errorf("after that: got %+v, %v", got, err)
			}
		})
	}
}

// Alive but not consuming after quick reconnects: celery#8030, nats.go#1729.
func TestWorker_WorksAfterFiveBouncesOfItsServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	p := open(t, connect(t, r.server.URL(), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0)))
	w, _ := start(t, p, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	eventually(t, r.ctx, "the worker to be ready", func() bool { return w.Ready(r.ctx) == nil })
	for i := range 5 {
		r.server.Kill()
		if err := r.server.Restart(); err != nil {
			t.Fatalf("bounce %d: %v", i, err)
		}
	}
	for i := range 5 {
		id := fmt.Sprint("after-", i)
		r.submit(t, tallyman.Command{ID: id, Kind: "echo"})
		if got, err := r.Wait(r.ctx, id); err != nil || got.Attempt != 1 {
			t.Errorf("%s: got %+v, %v; want the receipt of attempt 1", id, got, err)
		}
	}
	eventually(t, r.ctx, "the worker to be ready again", func() bool { return w.Ready(r.ctx) == nil })
	r.emptied(t)
}

// A server that is away for minutes: clients stopped trying and kept silent
// (nats.go#1622). The client library gives up after 60 attempts by itself.
func TestWorker_ComesBackAfterHundredsOfReconnectAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	const attempts = 300
	var made atomic.Int64
	p := open(t, connect(t, r.server.URL(), nats.CustomReconnectDelay(func(int) time.Duration {
		made.Add(1)
		return time.Millisecond
	})))
	w, _ := start(t, p, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.submit(t, tallyman.Command{ID: "before", Kind: "echo"})
	if _, err := r.Wait(r.ctx, "before"); err != nil {
		t.Fatal(err)
	}
	r.server.Kill()
	eventually(t, r.ctx, "hundreds of attempts in vain", func() bool { return made.Load() >= attempts })
	if err := w.Ready(r.ctx); err == nil {
		t.Error("the worker is ready without a server")
	}
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, r.ctx, "the worker to be ready again", func() bool { return w.Ready(r.ctx) == nil })
	r.submit(t, tallyman.Command{ID: "after", Kind: "echo"})
	if got, err := r.Wait(r.ctx, "after"); err != nil || got.Owner != w.Owner() {
		t.Errorf("got %+v, %v; want the receipt by %s", got, err, w.Owner())
	}
}
