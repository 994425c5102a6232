package docs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/story"
	"github.com/tallyman-go/tallyman/stream"
)

func TestPermissions_OfOperations(t *testing.T) {
	t.Parallel()
	for _, removal := range []tallyman.Removal{tallyman.RemovalAck, tallyman.RemovalSweep} {
		t.Run("removal by "+string(removal), func(t *testing.T) {
			t.Parallel()
			permissions(t, removal)
		})
	}
}

func permissions(t *testing.T, removal tallyman.Removal) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel) // after what runs in parallel
	connect, open := serve(ctx, t, block(t, "../../docs/operations.md", "permissions"))

	settings := tallyman.Settings{Lease: 2 * time.Second, BackoffMin: 10 * time.Millisecond, Removal: removal}
	if err := tallyman.Create(ctx, connect("operator"), "main", settings, tallyman.Topology{}); err != nil {
		t.Fatalf("create as operator: %v", err)
	}

	// The server passes on heartbeats only from those who may send them.
	beaten := make(chan struct{})
	var once sync.Once
	if _, err := connect("all").Subscribe("$JS.ACK.main_commands.>", func(m *nats.Msg) {
		if string(m.Data) == "+WPI" {
			once.Do(func() { close(beaten) })
		}
	}); err != nil {
		t.Fatal(err)
	}

	producer := open("producer")
	parent := tallyman.Command{ID: "p", Kind: "parent"}
	if _, err := producer.Submit(ctx, parent); err != nil {
		t.Fatalf("submit as producer: %v", err)
	}
	// No worker runs yet, so the producer has to look at the first copy in the stream.
	if s, err := producer.Submit(ctx, parent); err != nil || !s.Absorbed {
		t.Errorf("submit while it is pending: got %+v, %v, want it absorbed", s, err)
	}

	if _, err := producer.Commands().Queue(ctx, "misspelt"); !errors.Is(err, stream.ErrNoQueue) {
		t.Errorf("look for a queue that is not there as producer: got %v, want %v", err, stream.ErrNoQueue)
	}

	worker := work(t, open("worker"), handlers(func(claim *tallyman.Claim) error {
		return claim.FollowUp(tallyman.Command{Kind: "child"})
	}, func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
		select {
		case <-beaten:
			return tallyman.Result{}, nil
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
	}))
	for _, id := range []string{"p", "p/1"} {
		completed(ctx, t, producer, id)
	}
	if s, err := producer.Submit(ctx, parent); err != nil || !s.Absorbed {
		t.Errorf("submit when it is completed: got %+v, %v, want it absorbed", s, err)
	}
	t.Run("what is settled leaves the stream", func(t *testing.T) {
		pooltest.Await(t, ctx, "an empty stream", func() bool {
			state, err := producer.Commands().State(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return state.Messages == 0
		})
	})
	t.Run("a worker can write records and tell that it can", func(t *testing.T) {
		if err := worker.Ready(ctx); err != nil {
			t.Errorf("ready: %v", err)
		}
	})
	t.Run("a reader sees queues and every record", func(t *testing.T) {
		reader := open("reader")
		if _, err := reader.Find(ctx, "p"); err != nil {
			t.Errorf("find: %v", err)
		}
		if q, err := reader.Commands().Queues(ctx); err != nil || len(q) != 1 {
			t.Errorf("queues: got %v, %v, want one", q, err)
		}
		if _, err := reader.Commands().State(ctx); err != nil {
			t.Errorf("state: %v", err)
		}
		records := 0
		if err := reader.Records().Scan(ctx, func(e kvstate.Entry) error {
			if e.Record != nil {
				records++
			}
			return nil
		}); err != nil || records != 2 {
			t.Errorf("scan: got %d records, %v, want 2", records, err)
		}
	})
	t.Run("a reader can ask why", func(t *testing.T) {
		reader := open("reader")
		evidence, err := story.Gather(ctx, reader.Commands(), reader.Records(), "p", story.Options{Scan: true})
		if err != nil || story.Tell(evidence).State != string(tallyman.Completed) {
			t.Errorf("why: got %+v, %v, want a completed command", evidence, err)
		}
	})
	if err := journal.Create(ctx, connect("operator"), journal.Config{Pool: "main"}); err != nil {
		t.Fatalf("create a journal as operator: %v", err)
	}
	const decided = 1
	all := connect("all")
	writer, err := tallyman.Open(ctx, all, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	w, err := journal.Open(ctx, all, writer, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	if _, err := w.Commit(ctx, "a", 0, journal.Decision{Commands: []tallyman.Command{{Kind: "child"}}}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"reader", "desk"} {
		t.Run("a "+user+" sees how far a journal is relayed, and audits it", func(t *testing.T) {
			pool := open(user)
			j, err := journal.Open(ctx, connect(user), pool, journal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = j.Close() })
			if s, err := j.Status(ctx); err != nil || s.Unpublished != decided {
				t.Errorf("status: got %+v, %v, want %d unpublished", s, err, decided)
			}
			if r, err := journal.Audit(ctx, j, journal.AuditOptions{}); err != nil || !r.Balanced || r.Decisions != decided {
				t.Errorf("audit: got %+v, %v, want %d decisions, balanced", r, err, decided)
			}
		})
	}
	for _, user := range []string{"producer", "reader"} {
		t.Run("a "+user+" can watch", func(t *testing.T) {
			seen := map[string]bool{}
			for c, err := range open(user).Watch(ctx, tallyman.Filter{Current: true}) {
				if err != nil {
					t.Fatalf("watch: %v", err)
				}
				if seen[c.ID] = true; len(seen) == 2 {
					break
				}
			}
			if !seen["p"] || !seen["p/1"] {
				t.Errorf("saw %v, want p and p/1", seen)
			}
		})
	}
	t.Run("the desk acts on commands and queues", func(t *testing.T) {
		pool := open("desk")
		d, act := desk.New(pool.Commands(), pool.Records()), desk.Act{By: "ann"}
		if _, err := d.Pause(ctx, act, "default", 0); err != nil {
			t.Fatalf("pause: %v", err)
		}
		if _, err := producer.Submit(ctx, tallyman.Command{ID: "c", Kind: "child"}); err != nil {
			t.Fatal(err)
		}
		if out, err := d.Cancel(ctx, act, "c"); err != nil || out.Left != nil {
			t.Errorf("cancel: got %+v, %v", out, err)
		}
		if err := d.Resume(ctx, act, "default"); err != nil {
			t.Errorf("resume: %v", err)
		}
		for _, id := range []string{"to-requeue", "to-resolve", "to-discard"} {
			reject(ctx, t, producer, id)
		}
		if counts, err := d.RequeueMany(ctx, act, desk.Bulk{IDs: []string{"to-requeue"}}); err != nil || counts.Done != 1 {
			t.Errorf("requeue: got %+v, %v", counts, err)
		}
		if _, err := d.Resolve(ctx, act, "to-resolve", desk.Result{}); err != nil {
			t.Errorf("resolve: %v", err)
		}
		if counts, err := d.DiscardMany(ctx, act, desk.Bulk{Filter: desk.Filter{Reason: kvstate.ReasonRejected, Kind: "reject"}}); err != nil || counts.Done < 1 {
			t.Errorf("discard: got %+v, %v", counts, err)
		}
		if report, err := audit.Run(ctx, pool.Commands(), pool.Records(), audit.Options{}); err != nil || !report.Balanced {
			t.Errorf("audit: got %+v, %v, want it balanced", report, err)
		}
	})
	js := pooltest.JetStream(t, all)
	for _, user := range []string{"producer", "worker", "reader", "desk"} {
		t.Run("a "+user+" creates no pool and changes neither settings nor sealed books", func(t *testing.T) {
			t.Parallel()
			short, cancel := context.WithTimeout(ctx, denial)
			defer cancel()
			if err := tallyman.Create(short, connect(user), "other", settings, tallyman.Topology{}); err == nil {
				t.Error("create: got nil, want an error")
			}
			for _, name := range []string{stream.Name("other"), "KV_other"} {
				if _, err := js.Stream(ctx, name); !errors.Is(err, jetstream.ErrStreamNotFound) {
					t.Errorf("stream %s: got %v, want %v", name, err, jetstream.ErrStreamNotFound)
				}
			}
			deniedSettings(ctx, t, open(user).Records())
		})
	}
	t.Run("a producer writes no record and a reader submits nothing", func(t *testing.T) {
		if err := producer.Records().PutWait(ctx, "p", []byte("x"), 0); !errors.Is(err, kvstate.ErrDenied) {
			t.Errorf("write as producer: got %v, want %v", err, kvstate.ErrDenied)
		}
		if _, err := open("reader").Submit(ctx, tallyman.Command{ID: "r", Kind: "child"}); !errors.Is(err, tallyman.ErrDenied) {
			t.Errorf("submit as reader: got %v, want %v", err, tallyman.ErrDenied)
		}
	})
}
