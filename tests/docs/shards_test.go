package docs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
)

// ofPool finds the subjects of a pool among the lines of the document.
var ofPool = regexp.MustCompile(`"[^"]*main[^"]*"`)

// sharded adds to each subject of pool main, as the document says, those of its
// shards behind the first.
func sharded(users string, n int) string {
	return ofPool.ReplaceAllStringFunc(users, func(subject string) string {
		all := []string{subject}
		for k := 1; k < n; k++ {
			all = append(all, strings.ReplaceAll(subject, "main", fmt.Sprintf("main_%d", k)))
		}
		return strings.Join(all, ", ")
	})
}

func TestPermissions_OfAShardedPool(t *testing.T) {
	const shards = 3
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connect, open := serve(ctx, t, sharded(block(t, "../../docs/operations.md", "permissions"), shards))
	settings := tallyman.Settings{Lease: 2 * time.Second, BackoffMin: 10 * time.Millisecond, Shards: shards}
	if err := tallyman.Create(ctx, connect("operator"), "main", settings, tallyman.Topology{}); err != nil {
		t.Fatalf("create as operator: %v", err)
	}
	producer := open("producer")
	// in returns an id of a shard.
	in := func(shard int, prefix string) string {
		for i := 0; ; i++ {
			if id := fmt.Sprintf("%s-%d", prefix, i); producer.ShardOf(command.Token(id)).Index == shard {
				return id
			}
		}
	}
	for shard := range shards {
		parent := tallyman.Command{ID: in(shard, "p"), Kind: "parent"}
		if _, err := producer.Submit(ctx, parent); err != nil {
			t.Fatalf("submit as producer to shard %d: %v", shard, err)
		}
		if s, err := producer.Submit(ctx, parent); err != nil || !s.Absorbed {
			t.Errorf("submit again while it is pending: got %+v, %v, want it absorbed", s, err)
		}
	}

	mux := &tallyman.Mux{}
	mux.Handle("parent", tallyman.HandlerFunc(func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		if err := claim.Progress(ctx, uint64(claim.Attempt()), nil); err != nil {
			return tallyman.Result{}, err
		}
		if claim.Attempt() == 1 {
			return tallyman.Result{}, errors.New("once more") // a nak, then a takeover
		}
		for shard := range shards {
			if err := claim.FollowUp(tallyman.Command{ID: in(shard, claim.ID()), Kind: "child"}); err != nil {
				return tallyman.Result{}, err
			}
		}
		return tallyman.Result{}, nil
	}))
	mux.Handle("child", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, nil
	}))
	mux.Handle("reject", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errors.New("never"))
	}))
	worker, err := open("worker").NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("run as worker: %v", err)
		}
	})
	completed := func(id string) {
		t.Helper()
		if r, err := producer.Wait(ctx, id); err != nil || r.State != tallyman.Completed {
			t.Fatalf("wait for %s as producer: got %+v, %v, want it completed", id, r, err)
		}
	}
	for shard := range shards {
		completed(in(shard, "p"))
		for child := range shards {
			completed(in(child, in(shard, "p")))
		}
	}
	if err := worker.Ready(ctx); err != nil {
		t.Errorf("ready: %v", err)
	}

	t.Run("a producer publishes by hand and a worker forwards", func(t *testing.T) {
		nc := connect("producer")
		for shard := range shards {
			id := in(shard, "stray")
			if _, err := nc.RequestWithContext(ctx, producer.Commands().Subject("default", "child", command.Token(id)), nil); err != nil {
				t.Fatalf("publish: %v", err)
			}
			completed(id)
		}
	})
	for _, user := range []string{"producer", "reader"} {
		t.Run("a "+user+" can watch", func(t *testing.T) {
			seen := map[int]bool{}
			for c, err := range open(user).Watch(ctx, tallyman.Filter{Current: true}) {
				if err != nil {
					t.Fatalf("watch: %v", err)
				}
				if seen[c.Shard] = true; len(seen) == shards {
					break
				}
			}
		})
	}
	for shard := range shards {
		t.Run(fmt.Sprintf("a reader and the desk in shard %d", shard), func(t *testing.T) {
			at := open("reader").Shards()[shard]
			if q, err := at.Commands.Queues(ctx); err != nil || len(q) != 1 {
				t.Errorf("queues: got %v, %v, want one", q, err)
			}
			if err := at.Records.Scan(ctx, func(kvstate.Entry) error { return nil }); err != nil {
				t.Errorf("scan: %v", err)
			}
			id := in(shard, "reject")
			if _, err := producer.Submit(ctx, tallyman.Command{ID: id, Kind: "reject"}); err != nil {
				t.Fatal(err)
			}
			if _, err := producer.Wait(ctx, id); !errors.Is(err, tallyman.ErrParked) {
				t.Fatalf("wait for %s: got %v, want it parked", id, err)
			}
			mine := open("desk").Shards()[shard]
			d, act := desk.New(mine.Commands, mine.Records), desk.Act{By: "ann"}
			if _, err := d.Requeue(ctx, act, id); err != nil {
				t.Errorf("requeue: %v", err)
			}
			if _, err := d.Pause(ctx, act, "default", 0); err != nil {
				t.Errorf("pause: %v", err)
			}
			if err := d.Resume(ctx, act, "default"); err != nil {
				t.Errorf("resume: %v", err)
			}
			if report, err := audit.Run(ctx, mine.Commands, mine.Records, audit.Options{}); err != nil || !report.Balanced {
				t.Errorf("audit: got %+v, %v, want it balanced", report, err)
			}
		})
	}
	for _, user := range []string{"producer", "worker", "reader", "desk"} {
		t.Run("a "+user+" changes neither settings nor sealed books of a shard", func(t *testing.T) {
			for _, at := range open(user).Shards() {
				for _, key := range []command.Token{kvstate.KeySettings, kvstate.KeyAudit} {
					e, err := at.Records.Read(ctx, key)
					if err != nil {
						t.Fatal(err)
					}
					if err := at.Records.PutWait(ctx, key, []byte("{}"), e.Revision); !errors.Is(err, kvstate.ErrDenied) {
						t.Errorf("write %s of shard %d: got %v, want %v", key, at.Index, err, kvstate.ErrDenied)
					}
				}
			}
		})
	}
}
