package tallyman_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// leads counts what each server leads, as soon as everything has a leader.
func (r *rig) leads(t *testing.T, streams []string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, name := range streams {
		eventually(t, r.ctx, "a leader of "+name, func() bool {
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			defer cancel()
			s, err := r.js.Stream(ctx, name)
			if err != nil || s.CachedInfo().Cluster == nil || s.CachedInfo().Cluster.Leader == "" {
				return false
			}
			counts[s.CachedInfo().Cluster.Leader]++
			return true
		})
	}
	return counts
}

func TestShards_OnThreeReplicas(t *testing.T) {
	t.Parallel()
	settings := tallyman.Settings{Lease: 5 * time.Second, Shards: 6}
	r, c := newClusterRig(t, settings)
	var streams, buckets []string
	for _, s := range r.Shards() {
		streams = append(streams, s.Records.Bucket()+"_commands")
		buckets = append(buckets, "KV_"+s.Records.Bucket())
	}
	t.Run("the servers lead as many each", func(t *testing.T) {
		for _, all := range [][]string{streams, buckets} {
			var got map[string]int
			eventually(t, r.ctx, "two leaders on each server", func() bool {
				got = r.leads(t, all)
				for _, n := range got {
					if n != 2 || len(got) != 3 {
						// On a busy machine another one may have been elected meanwhile.
						pooltest.Make(t, r.ctx, r.nc, tallyman.Settings{}, tallyman.Topology{})
						return false
					}
				}
				return true
			})
			t.Log(got)
		}
	})
	start(t, open(t, connect(t, c.URL())), tallyman.WorkerConfig{Mux: handle("echo", echo)})
	run := func(prefix string) {
		for i := range 30 {
			id := fmt.Sprint(prefix, i)
			r.submit(t, tallyman.Command{ID: id, Kind: "echo", Payload: []byte(id)})
		}
		for i := range 30 {
			id := fmt.Sprint(prefix, i)
			if got, err := r.Wait(r.ctx, id); err != nil || string(got.Result) != id {
				t.Errorf("wait for %s: got %+v, %v", id, got, err)
			}
		}
	}
	run("before-")
	// A third of the leaders goes, and comes back as followers.
	c.Kill(0)
	run("without-")
	if err := c.Restart(0); err != nil {
		t.Fatal(err)
	}
	run("after-")
	r.emptied(t)
	for _, s := range r.Shards() {
		// A scan may be answered by the node that is back and has not caught up.
		eventually(t, r.ctx, "balanced books of shard "+strconv.Itoa(s.Index), func() bool {
			b, err := audit.Run(r.ctx, s.Commands, s.Records, audit.Options{})
			return err == nil && b.Balanced && b.Pending == 0
		})
	}
}
