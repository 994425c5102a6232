//go:build unix

package e2e

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
)

func TestServer_KilledWhileCommandsRun(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	s.worker(t)
	s.worker(t)
	ids := make([]string, 30)
	for i := range ids {
		ids[i] = "k-" + strconv.Itoa(i)
		s.submit(t, "slow", ids[i], (time.Duration(i) * 20 * time.Millisecond).String())
	}
	s.awaitLine(t, "effect", ids[5])
	s.server.kill()
	s.restartServer(t)
	for _, id := range ids {
		s.receipt(t, id)
	}
	s.settle(t)
	checkBooks(t, s)
}

// Writes share batches only where many are under way, so this one submits all
// at once. What was acknowledged before the server is killed is on its disk.
func TestServer_KilledWhileGroupsAreWritten(t *testing.T) {
	t.Parallel()
	settings := short
	settings.Commit = tallyman.CommitGroup
	s := newStand(t, settings)
	s.worker(t, "TALLYMAN_CONCURRENCY=100")
	s.worker(t, "TALLYMAN_CONCURRENCY=100")
	const n, kills = 600, 3
	commands := func(yield func(tallyman.Command) bool) {
		for i := range n {
			if !yield(tallyman.Command{ID: "g-" + strconv.Itoa(i), Kind: "log", Payload: []byte("x")}) {
				return
			}
		}
	}
	var accepted atomic.Int64
	submitted := make(chan error, 1)
	go func() {
		// On a busy machine a server takes seconds to come back.
		producer := s.pool.NewProducer(tallyman.ProducerConfig{Confirm: patience})
		submitted <- producer.SubmitMany(t.Context(), commands, func(i int, _ tallyman.Submission, err error) {
			if err != nil {
				t.Errorf("submit %d: %v", i, err)
				return
			}
			accepted.Add(1)
		})
	}()
	for i := range kills {
		await(t, "commands to be accepted", func() bool { return accepted.Load() > int64(i*n/kills) })
		s.server.kill()
		s.restartServer(t)
	}
	if err := <-submitted; err != nil || accepted.Load() != n {
		t.Fatalf("%d of %d commands accepted: %v", accepted.Load(), n, err)
	}
	for i := range n {
		s.receipt(t, "g-"+strconv.Itoa(i))
	}
	s.settle(t)
	checkBooks(t, s)
}

func TestServer_BouncedFiveTimes(t *testing.T) {
	t.Parallel()
	settings := short
	settings.MaxAttempts = 100 // where a bounce takes longer than a lease, it burns one
	s := newStand(t, settings)
	a, b := s.worker(t), s.worker(t)
	s.submit(t, "slow", "through", "4s")
	s.began(t, "through", 1)
	for i := range 5 {
		s.server.kill()
		s.restartServer(t)
		await(t, "the connection to be back", s.nc.IsConnected)
		s.submit(t, "log", "b-"+strconv.Itoa(i), "x")
	}
	for i := range 5 {
		s.receipt(t, "b-"+strconv.Itoa(i))
	}
	s.receipt(t, "through")
	// Each worker consumes again, not just one of them.
	a.freeze(t)
	s.submit(t, "log", "by-b", "x")
	s.receiptBy(t, "by-b", b, s.receipt(t, "by-b").Attempt)
	a.thaw(t)
	b.freeze(t)
	s.submit(t, "log", "by-a", "x")
	s.receiptBy(t, "by-a", a, s.receipt(t, "by-a").Attempt)
	b.thaw(t)
	s.settle(t)
	checkBooks(t, s)
}

func TestServer_ConsumerDeletedUnderALiveWorker(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	a := s.worker(t)
	s.submit(t, "zombie", "held", "gate")
	s.began(t, "held", 1)
	if err := s.js.DeleteConsumer(t.Context(), "main_commands", "default"); err != nil {
		t.Fatal(err)
	}
	s.amnesia = true
	s.submit(t, "log", "meanwhile", "x")
	// The init of an operator, safe to repeat.
	if err := tallyman.Create(t.Context(), s.nc, tallyman.DefaultPool, tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	s.receipt(t, "meanwhile")
	// The new consumer counts from one: the same worker runs the command twice
	// over, each run in good faith. Only one of them may write.
	await(t, "the command to come as if for the first time", func() bool { return len(s.of(t, "begin", "held")) == 2 })
	s.open(t, "gate-1")
	s.receiptBy(t, "held", a, 1)
	s.awaitLine(t, "fenced", "held")
	s.settle(t)
	for what, want := range map[string]int{"effect": 1, "fenced": 1} {
		if got := len(s.of(t, what, "held")); got != want {
			t.Errorf("%s of the command held by two runs of one worker: got %d, want %d", what, got, want)
		}
	}
	checkBooks(t, s)
}

func TestNetwork_AwayForThreeLeases(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	link := newLink(t, s.url)
	a := s.worker(t, "NATS_URL="+link.url())
	s.submit(t, "gate", "held", "gate")
	s.began(t, "held", 1)
	link.down()
	await(t, "the worker to give up", func() bool { return s.sawEvent(t, a, "held", "lease_lost") })
	b := s.worker(t)
	s.began(t, "held", 2)
	s.open(t, "gate")
	s.receiptBy(t, "held", b, 2)
	b.kill()
	link.up()
	// The worker that was cut off works again, be it that the other's last pull took the command along.
	s.submit(t, "log", "after", "x")
	s.receiptBy(t, "after", a, s.receipt(t, "after").Attempt)
	s.settle(t)
	checkBooks(t, s)
}

// Unknown to its server for hours after a blip of the network:
// faktory_worker_go#57. Neither end is told that the connection is dead.
func TestNetwork_ConnectionThatDiedSilently(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	link := newLink(t, s.url)
	a := s.worker(t, "NATS_URL="+link.url())
	s.submit(t, "gate", "held", "gate")
	s.began(t, "held", 1)
	link.silence()
	await(t, "the worker to give up", func() bool { return s.sawEvent(t, a, "held", "lease_lost") })
	b := s.worker(t)
	s.began(t, "held", 2)
	s.open(t, "gate")
	s.receiptBy(t, "held", b, 2)
	b.kill()
	// Longer than the lease, and until the worker finds out by itself.
	s.submit(t, "log", "after", "x")
	s.receiptBy(t, "after", a, s.receipt(t, "after").Attempt)
	s.settle(t)
	if got := len(s.of(t, "effect", "held")); got != 1 {
		t.Errorf("the command that was held had %d effects, want 1", got)
	}
	checkBooks(t, s)
}
