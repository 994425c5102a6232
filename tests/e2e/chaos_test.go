//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/dedupe"
)

// Chaos by default: how long, and how many commands per second.
const (
	chaosTime = 12 * time.Second
	chaosRate = 12
)

// chaos is a stand under random faults.
type chaos struct {
	*stand
	link    *link
	random  *rand.Rand
	workers []*process
	frozen  map[*process]time.Time // until when
	faults  map[string]int
}

// TestChaos kills, freezes and cuts off workers and kills the server at random
// while commands of every kind are submitted, some of them twice. In the end
// every command has its receipt and the books balance.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TALLYMAN_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TALLYMAN_SEED: %v", err)
		}
	}
	length := chaosTime
	if text := os.Getenv("TALLYMAN_CHAOS"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("TALLYMAN_CHAOS: %v", err)
		}
	}
	t.Logf("chaos for %v; the same faults again: TALLYMAN_SEED=%d TALLYMAN_CHAOS=%v go test -run Chaos ./tests/e2e/", length, seed, length)
	for name, settings := range map[string]tallyman.Settings{
		"1 shards": {}, "4 shards": {Shards: 4}, "in groups": {Commit: tallyman.CommitGroup},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reign(t, settings, seed, length)
		})
	}
}

func reign(t *testing.T, settings tallyman.Settings, seed uint64, length time.Duration) {
	t.Helper()
	// Faults burn attempts of commands that did nothing wrong.
	settings.Lease, settings.MaxAttempts = time.Second, 1000
	settings.BackoffMin, settings.BackoffMax = 50*time.Millisecond, 300*time.Millisecond
	c := &chaos{
		stand: newStand(t, settings), random: rand.New(rand.NewPCG(seed, 0)),
		frozen: map[*process]time.Time{}, faults: map[string]int{},
	}
	c.amnesia = true // it will be
	c.link = newLink(t, c.url)
	for range 3 {
		c.workers = append(c.workers, c.start(t))
	}

	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var submitting sync.WaitGroup
	var ids []string
	var failed error
	// The submitter has a source of its own: the order of faults must not
	// depend on how fast submissions are.
	submitting.Go(func() { ids, failed = c.submitAll(ctx, rand.New(rand.NewPCG(seed, 1)), length) })
	c.rage(ctx, t)
	submitting.Wait()
	c.calm(t)
	if failed != nil {
		t.Fatal(failed)
	}
	for _, id := range ids {
		c.receipt(t, id)
	}
	c.settle(t)
	t.Logf("%d commands, faults: %v", len(ids), c.faults)
	for _, fault := range []string{"kill", "freeze", "cut", "server"} {
		if c.faults[fault] == 0 {
			t.Logf("no fault of sort %s came up", fault)
		}
	}
	checkBooks(t, c.stand)
}

// start starts a worker, every other one of them behind the link.
func (c *chaos) start(t *testing.T) *process {
	t.Helper()
	if c.random.IntN(2) == 0 {
		return c.workerSoon(t, "TALLYMAN_CONCURRENCY=8")
	}
	return c.workerSoon(t, "TALLYMAN_CONCURRENCY=8", "NATS_URL="+c.link.url())
}

// rage makes faults until ctx ends.
func (c *chaos) rage(ctx context.Context, t *testing.T) {
	t.Helper()
	for {
		pause := time.NewTimer(time.Duration(50+c.random.IntN(400)) * time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		for p, until := range c.frozen {
			if time.Now().After(until) {
				p.thaw(t)
				delete(c.frozen, p)
			}
		}
		i := c.random.IntN(len(c.workers))
		p := c.workers[i]
		switch n := c.random.IntN(10); {
		case n < 3 || !p.alive():
			p.kill()
			delete(c.frozen, p)
			c.workers[i] = c.start(t)
			c.faults["kill"]++
		case n < 6:
			p.freeze(t)
			c.frozen[p] = time.Now().Add(time.Duration(200+c.random.IntN(2000)) * time.Millisecond)
			c.faults["freeze"]++
		case n < 9:
			c.link.cut()
			c.faults["cut"]++
		default:
			c.server.kill()
			c.restartServer(t)
			c.faults["server"]++
		}
	}
}

// calm ends all faults and leaves workers enough.
func (c *chaos) calm(t *testing.T) {
	t.Helper()
	for p := range c.frozen {
		p.thaw(t)
	}
	for i, p := range c.workers {
		if !p.alive() {
			c.workers[i] = c.start(t)
		}
	}
}

// submitAll submits commands at an even rate until ctx ends, each until it is
// accepted, and returns the ids of all that will have a receipt.
func (c *chaos) submitAll(ctx context.Context, random *rand.Rand, length time.Duration) (ids []string, err error) {
	tick := time.NewTicker(time.Second / chaosRate)
	defer tick.Stop()
	for i := range int(length.Seconds() * chaosRate) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ids, nil
		}
		cmd := tallyman.Command{ID: "x-" + strconv.Itoa(i), Kind: "log", Payload: []byte("x")}
		ids = append(ids, cmd.ID)
		switch random.IntN(6) {
		case 0:
			cmd.Kind, cmd.Payload = "slow", []byte(strconv.Itoa(random.IntN(1500))+"ms")
		case 1:
			cmd.Kind, cmd.Payload = "steps", []byte(strconv.Itoa(1+random.IntN(20))+" 20ms")
		case 2:
			cmd.Kind, cmd.Payload = "fail", []byte(strconv.Itoa(1+random.IntN(3)))
		case 4:
			cmd.Kind = "pay"
		case 3:
			cmd.Kind = "parent"
			ids = append(ids, cmd.ID+"/1", cmd.ID+"/2")
		}
		if random.IntN(4) == 0 {
			if err := c.publishAnyhow(ctx, cmd); err != nil {
				return ids, err
			}
		}
		for range 1 + random.IntN(2) { // the second time it is absorbed
			if err := c.insist(cmd); err != nil {
				return ids, err
			}
		}
		if random.IntN(10) == 0 {
			other := cmd
			other.Payload = append([]byte("other "), cmd.Payload...)
			if err := c.insist(other); !errors.Is(err, tallyman.ErrConflict) {
				return ids, fmt.Errorf("I6: another payload under the id %s was not refused as a conflict but answered with %q", cmd.ID, fmt.Sprint(err))
			}
		}
	}
	return ids, nil
}

// publishAnyhow tries to publish a command by hand, to the first shard
// whatever its id. It is submitted as well, so it need not succeed.
func (c *chaos) publishAnyhow(ctx context.Context, cmd tallyman.Command) error {
	token, err := dedupe.Token(cmd.ID)
	if err != nil {
		return err
	}
	m := nats.NewMsg("main.commands.default." + cmd.Kind + "." + string(token))
	m.Data = cmd.Payload
	_, _ = c.js.PublishMsg(ctx, m) // the server may be away just now
	return nil
}

// insist submits until the answer is clear, as every producer should.
func (c *chaos) insist(cmd tallyman.Command) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		_, err := c.pool.Submit(ctx, cmd)
		if !errors.Is(err, tallyman.ErrUnconfirmed) || ctx.Err() != nil {
			return err
		}
	}
}
