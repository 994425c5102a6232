package group_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// crew are two workers of a pool that writes in groups, each with a connection
// of its own, and commands of every sort.
type crew struct {
	t         *testing.T
	ctx       context.Context
	nc        *nats.Conn
	pools     [2]*tallyman.Pool
	completed atomic.Int64
}

const (
	crewCommands  = 600
	crewFollowUps = crewCommands / 4
)

func newCrew(t *testing.T, url string) *crew {
	t.Helper()
	ctx := pooltest.Context(t)
	c := &crew{t: t, ctx: ctx, nc: pooltest.Connect(t, url)}
	settings := tallyman.Settings{
		Commit: tallyman.CommitGroup, Lease: 5 * time.Second, MaxAttempts: 100,
		BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
	}
	c.pools[0] = pooltest.Create(t, c.nc, settings, tallyman.Topology{})
	c.pools[1] = pooltest.Open(t, pooltest.Connect(t, url))
	return c
}

// mux handles commands that complete at once, fail at first, save their
// progress, and have follow-ups.
func (c *crew) mux() *tallyman.Mux {
	mux := new(tallyman.Mux)
	done := tallyman.Result{Body: []byte("done")}
	mux.Handle("plain", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) { return done, nil }))
	mux.Handle("fails", tallyman.HandlerFunc(func(_ context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		if claim.Attempt() < 2 {
			return tallyman.Result{}, errors.New("not yet")
		}
		return done, nil
	}))
	mux.Handle("saves", tallyman.HandlerFunc(func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		for offset := claim.Offset() + 1; offset <= 3; offset++ {
			if err := claim.Progress(ctx, offset, []byte("so far")); err != nil {
				return tallyman.Result{}, err
			}
		}
		return done, nil
	}))
	mux.Handle("parent", tallyman.HandlerFunc(func(_ context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		return done, claim.FollowUp(tallyman.Command{Kind: "plain", Payload: claim.Payload()})
	}))
	return mux
}

// work starts both workers.
func (c *crew) work() (stop func()) {
	var stops []func()
	for _, p := range c.pools {
		w, err := p.NewWorker(tallyman.WorkerConfig{
			Mux: c.mux(), Concurrency: 100, Logger: slog.New(slog.DiscardHandler),
			Observe: func(e tallyman.Event) {
				if e.Type == tallyman.EventCompleted {
					c.completed.Add(1)
				}
			},
		})
		if err != nil {
			c.t.Fatal(err)
		}
		stops = append(stops, pooltest.Run(c.t, w.Run))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// submit lets both participants submit the same commands.
func (c *crew) submit() *sync.WaitGroup {
	submitting := &sync.WaitGroup{}
	kinds := []string{"plain", "fails", "saves", "parent"}
	for _, p := range c.pools {
		submitting.Go(func() {
			commands := func(yield func(tallyman.Command) bool) {
				for i := range crewCommands {
					if !yield(tallyman.Command{ID: "c-" + strconv.Itoa(i), Kind: kinds[i%4], Payload: []byte("p")}) {
						return
					}
				}
			}
			err := p.NewProducer(tallyman.ProducerConfig{}).SubmitMany(c.ctx, commands, func(i int, _ tallyman.Submission, err error) {
				if err != nil {
					c.t.Errorf("submit command %d: %v", i, err)
				}
			})
			if err != nil {
				c.t.Errorf("submit: %v", err)
			}
		})
	}
	return submitting
}

// check waits until nothing is left to deliver, and proves the books. A command
// whose ack was under way when the server died may stay in the stream: the
// consumer knows the ack, and the removal got lost.
func (c *crew) check() {
	c.t.Helper()
	first := c.pools[0]
	pooltest.Await(c.t, c.ctx, "a queue with nothing left", func() bool {
		ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
		defer cancel()
		st, err := first.Commands().State(ctx)
		if err != nil {
			return false
		}
		q, err := first.Commands().Queue(ctx, command.DefaultQueue)
		return err == nil && q.Pending == 0 && q.Outstanding == 0 && q.Floor >= st.LastSeq
	})
	books, err := audit.Run(c.ctx, first.Commands(), first.Records(), audit.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	if want := uint64(crewCommands + crewFollowUps); !books.Balanced || books.Completed != want || books.Parked != 0 || books.Pending != 0 {
		c.t.Errorf("got books %+v, want %d completed, none parked", books, want)
	}
	for i := range crewCommands {
		if _, err := first.Wait(c.ctx, "c-"+strconv.Itoa(i)); err != nil {
			c.t.Errorf("receipt of command %d: %v", i, err)
		}
	}
	if _, batches := batchesOf(c.t, c.ctx, c.nc, "KV_main"); batches == 0 {
		c.t.Error("no batch of records is stored: nothing was shown")
	}
}

// TestGroup_WorkersOverAKill proves I1, I2, I3 and I7 where receipts, progress
// and commands go in groups, and the server dies under them.
func TestGroup_WorkersOverAKill(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), SyncAlways: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	c := newCrew(t, server.URL())
	stop := c.work()
	submitting := c.submit()
	for round := range 2 {
		before := c.completed.Load()
		pooltest.Await(t, c.ctx, fmt.Sprintf("receipts in round %d", round), func() bool {
			return c.completed.Load() > before+100 || c.completed.Load() >= crewCommands
		})
		server.Kill()
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	submitting.Wait()
	c.check()
	stop()
}

// TestGroup_GoesOnOneByOne switches batches off under working workers, as an
// edit of the streams by hand does.
func TestGroup_GoesOnOneByOne(t *testing.T) {
	t.Parallel()
	c := newCrew(t, pooltest.Server(t).URL())
	stop := c.work()
	submitting := c.submit()
	pooltest.Await(t, c.ctx, "the first receipts", func() bool { return c.completed.Load() > 100 })
	js := pooltest.JetStream(t, c.nc)
	for _, name := range []string{"KV_main", "main_commands"} {
		str, err := js.Stream(c.ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := str.CachedInfo().Config
		cfg.AllowAtomicPublish = false
		if _, err := js.UpdateStream(c.ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	submitting.Wait()
	c.check()
	stop()
}
