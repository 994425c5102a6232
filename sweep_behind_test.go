package tallyman_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/dedupe"
)

func TestSweep_FloorIsStuck(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	gate := make(chan struct{})
	mux := handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.ID() == "slow-0" {
			<-gate
		}
		return echo(ctx, c)
	})
	pace := quick
	pace.Single, pace.Page = 100, 16
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: mux})
	r.many(t, "", "slow", 1)
	few := r.many(t, "", "few", 50)
	r.settled(t, few...)
	more := r.many(t, "", "more", 400)
	r.settled(t, more...)
	t.Run("what lies behind it is removed one by one beyond a bound", func(t *testing.T) {
		eventually(t, r.ctx, "fewer than the bound in the stream", func() bool { return len(r.lying(t)) <= 100 })
		if got := r.lying(t); got[0] != 1 {
			t.Errorf("the slow one is gone: %v", got)
		}
		r.balanced(t)
	})
	close(gate)
	r.settled(t, "slow-0")
	r.emptied(t)
}

// TestSweep_BeforeReceiptsExpire guards against a settled command that outlives
// the record that proves it.
func TestSweep_BeforeReceiptsExpire(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	gate := make(chan struct{})
	defer close(gate)
	pace := quick
	pace.Patient = 50 * time.Millisecond
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.ID() == "slow-0" {
			<-gate
		}
		return echo(ctx, c)
	})})
	r.many(t, "", "slow", 1)
	r.settled(t, r.many(t, "", "c", 5)...)
	r.holds(t, 1)
}

// TestSweep_OneByOneLeavesWhatMayHaveFollowUps guards against taking out, behind a
// command that takes long, one whose receipt is stored and whose follow-ups are not born.
func TestSweep_OneByOneLeavesWhatMayHaveFollowUps(t *testing.T) {
	t.Parallel()
	settings := sweeping
	settings.Lease = 5 * time.Minute // longer than the test
	r := newRig(t, settings, tallyman.Topology{})
	slow, parent := tallyman.Command{ID: "slow", Kind: "echo"}, tallyman.Command{ID: "p", Kind: "echo"}
	r.submit(t, slow)
	r.submit(t, parent)
	taken := []jetstream.Msg{r.take(t), r.take(t)}
	r.complete(t, parent, 2, tallyman.Command{ID: "child", Kind: "echo"})
	pace := quick
	pace.Patient = 50 * time.Millisecond
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "c", 5)...)
	r.holds(t, 1, 2)
	for _, m := range taken {
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	r.settled(t, "slow", "child")
	r.emptied(t)
}

func TestSweep_Queues(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{Queues: []string{"default", "idle"}})
	r.many(t, "idle", "i", 2)   // 1, 2: nobody works on them
	r.many(t, "orphan", "o", 1) // 3: a queue without a consumer
	a := r.many(t, "", "a", 3)  // 4..6
	r.many(t, "idle", "j", 1)   // 7
	b := r.many(t, "", "b", 3)  // 8..10
	r.many(t, "orphan", "p", 1) // 11
	_, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, append(a, b...)...)
	t.Run("what other queues hold stays, and does not hold up this one", func(t *testing.T) {
		r.holds(t, 1, 2, 3, 7, 11)
		if got := r.balanced(t); got.Pending != 5 {
			t.Errorf("audit: got %d pending, want 5", got.Pending)
		}
	})
	t.Run("they are worked on when there is somebody", func(t *testing.T) {
		stop()
		if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{Queues: []string{"orphan"}}); err != nil {
			t.Fatal(err)
		}
		sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Queues: []string{"idle", "orphan"}})
		r.settled(t, "i-0", "i-1", "j-0", "o-0", "p-0")
		r.emptied(t)
		r.balanced(t)
	})
}

// TestSweep_DoesNotDelayWhatIsInLine guards against a purge that makes the
// server forget what was given back and waits for a pull.
func TestSweep_DoesNotDelayWhatIsInLine(t *testing.T) {
	t.Parallel()
	settings := sweeping
	settings.Lease = 5 * time.Minute // longer than the test: what is forgotten stays so
	r := newRig(t, settings, tallyman.Topology{})
	given := r.many(t, "", "c", 3)
	m := []jetstream.Msg{r.take(t), r.take(t), r.take(t)}
	env, err := dedupe.Identify(tallyman.Command{ID: "c-0", Kind: "echo", Payload: []byte("c-0")})
	if err != nil {
		t.Fatal(err)
	}
	r.complete(t, env.Command, 1)
	if err := errors.Join(m[0].DoubleAck(r.ctx), m[1].Nak(), m[2].Nak()); err != nil {
		t.Fatal(err)
	}
	// A worker of another queue sweeps, and nobody pulls from this one.
	if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{Queues: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	_, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Queues: []string{"other"}})
	r.settled(t, r.many(t, "other", "o", 20)...)
	stop()
	sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, given...)
	r.emptied(t)
}
