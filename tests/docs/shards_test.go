package docs_test

import (
	"context"
	"fmt"
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
	t.Parallel()
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

	worker := work(t, open("worker"), handlers(func(claim *tallyman.Claim) error {
		for shard := range shards {
			if err := claim.FollowUp(tallyman.Command{ID: in(shard, claim.ID()), Kind: "child"}); err != nil {
				return err
			}
		}
		return nil
	}, func(context.Context, *tallyman.Claim) (tallyman.Result, error) { return tallyman.Result{}, nil }))
	for shard := range shards {
		completed(ctx, t, producer, in(shard, "p"))
		for child := range shards {
			completed(ctx, t, producer, in(child, in(shard, "p")))
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
			completed(ctx, t, producer, id)
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
			reject(ctx, t, producer, id)
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
				deniedSettings(ctx, t, at.Records)
			}
		})
	}
}
