package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
)

// TestSweep_MakesRoom: what is settled behind a command that takes long must
// not keep new commands out of a bounded stream.
func TestSweep_MakesRoom(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		topology tallyman.Topology
		queue    string // of those behind the one that takes long
		busy     bool   // no slot is free meanwhile
	}{
		"in its queue":               {topology: tallyman.Topology{MaxCommands: 40}},
		"in its queue, of bytes":     {topology: tallyman.Topology{MaxBytes: 40 * 200}},
		"in another queue":           {topology: tallyman.Topology{MaxCommands: 40, Queues: []string{"default", "other"}}, queue: "other"},
		"while workers are all busy": {topology: tallyman.Topology{MaxCommands: 40}, busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, sweeping, tt.topology)
			gate := make(chan struct{})
			mux := handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				if c.ID() == "slow-0" {
					<-gate
				}
				return echo(ctx, c)
			})
			cfg := tallyman.WorkerConfig{Mux: mux, Queues: tt.topology.Queues}
			if tt.busy {
				cfg.Concurrency = 2
			}
			// All but the pace is as in real life.
			sweeper(t, r.Pool, tallyman.SweepPace{Every: 20 * time.Millisecond}, cfg)
			r.many(t, "", "slow", 1)
			var ids []string
			for i := range 200 {
				c := tallyman.Command{ID: fmt.Sprint("c-", i), Kind: "echo", Queue: tt.queue}
				ids = append(ids, c.ID)
				eventually(t, r.ctx, "room for "+c.ID, func() bool {
					_, err := r.Submit(r.ctx, c)
					if err != nil && !errors.Is(err, tallyman.ErrPoolFull) {
						t.Fatal(err)
					}
					return err == nil
				})
			}
			r.settled(t, ids...)
			close(gate)
			r.settled(t, "slow-0")
			r.emptied(t)
			r.balanced(t)
		})
	}
}
