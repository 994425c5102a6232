package tallyman_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// On three replicas any of them may answer a read, one that lags too. What it
// lacks comes with a later read, and nothing comes twice. A node that was killed
// and is back may lag for minutes when nothing more is written: Watch once waited
// as long, since the client's own node answers its reads.
func TestWatch_OnThreeReplicasWhileNodesAreKilled(t *testing.T) {
	t.Parallel()
	r, c := newClusterRig(t, tallyman.Settings{Lease: 5 * time.Second})
	watcher := &rig{Pool: open(t, connect(t, c.URL())), ctx: r.ctx}
	changes := watcher.watch(t, tallyman.Filter{After: r.revision(t)})

	const keys, rounds = 40, 6
	final := map[string]uint64{}
	written := make(chan error, 1)
	go func() {
		written <- func() error {
			for round := range rounds {
				if round%2 == 1 {
					c.Kill(round / 2)
				}
				for i := range keys {
					id := fmt.Sprintf("k-%d", i)
					revision, err := persistent(r, id, uint64(round+1))
					if err != nil {
						return err
					}
					final[id] = revision
				}
				if round%2 == 1 {
					if err := c.Restart(round / 2); err != nil {
						return err
					}
				}
			}
			return nil
		}()
	}()

	var last uint64
	newest := map[string]tallyman.Change{}
	done := func() bool {
		for _, change := range newest {
			if change.Record.Offset != rounds {
				return false
			}
		}
		return len(newest) == keys
	}
	for !done() {
		change := changes.next(t, r.ctx)
		if change.Revision <= last {
			t.Fatalf("revision %d came after %d", change.Revision, last)
		}
		last = change.Revision
		newest[change.ID] = change
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	for id, revision := range final {
		if got := newest[id].Revision; got != revision {
			t.Errorf("%s: the last change seen is revision %d, want %d", id, got, revision)
		}
	}
	// A node that is closed while it catches up leaves goroutines behind.
	eventually(t, r.ctx, "all replicas to be current", func() bool {
		for _, name := range []string{"KV_main", stream.Name("main")} {
			str, err := r.js.Stream(t.Context(), name) // which gives up by itself
			if err != nil {
				return false
			}
			cluster := str.CachedInfo().Cluster
			if cluster == nil || cluster.Leader == "" || len(cluster.Replicas) != 2 {
				return false
			}
			for _, peer := range cluster.Replicas {
				if !peer.Current || peer.Offline {
					return false
				}
			}
		}
		return true
	})
}

// persistent writes progress of a record until it is known to be stored, and
// returns its revision.
func persistent(r *rig, id string, offset uint64) (uint64, error) {
	for {
		e, err := r.Records().Read(r.ctx, command.Token(id))
		if err == nil {
			if e.Record != nil && e.Record.Offset == offset {
				return e.Revision, nil // the answer to the write got lost
			}
			rec := &kvstate.Record{ID: id, Kind: "x", State: kvstate.Claimed, Owner: "w", Offset: offset, Revision: e.Revision}
			var revision uint64
			if revision, err = r.Records().WriteWait(r.ctx, command.Token(id), rec); err == nil {
				return revision, nil
			}
		}
		select {
		case <-r.ctx.Done():
			return 0, err
		case <-time.After(10 * time.Millisecond): // a node is down
		}
	}
}
