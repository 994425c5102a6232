package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// spread is brisk over three shards.
func spread() tallyman.Settings {
	s := brisk
	s.Shards = 3
	return s
}

// idIn returns the n-th id with a prefix that belongs to a shard.
func (r *rig) idIn(t testing.TB, shard int, prefix string, n int) string {
	t.Helper()
	for i := 0; ; i++ {
		id := fmt.Sprintf("%s-%d", prefix, i)
		token, err := dedupe.Token(id)
		if err != nil {
			t.Fatal(err)
		}
		if r.ShardOf(token).Index != shard {
			continue
		}
		if n--; n < 0 {
			return id
		}
	}
}

// balanced audits every shard and returns the sum of their books.
func (r *rig) balanced(t testing.TB) (sum audit.Report) {
	t.Helper()
	for _, s := range r.Shards() {
		b, err := audit.Run(r.ctx, s.Commands, s.Records, audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !b.Balanced {
			t.Errorf("books of shard %d: got %+v", s.Index, b)
		}
		sum.LastSeq += b.LastSeq
		sum.Completed += b.Completed
		sum.Parked += b.Parked
		sum.Absorbed += b.Absorbed
		sum.Pending += b.Pending
		sum.Cancelled += b.Cancelled
	}
	return sum
}

func TestShards_WorkerKeepsTheInvariants(t *testing.T) {
	t.Parallel()
	settings := spread()
	settings.Removal = tallyman.RemovalAck // where it is swept, the stream refuses the copies that this test publishes
	r := newRig(t, settings, tallyman.Topology{})
	entered, listening := make(chan string, 10), make(chan struct{})
	mux := route(
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
		tallyman.Route{Kind: "fail", Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, errBroken
		})},
		tallyman.Route{Kind: "parent", Handler: tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			for shard := range 3 {
				if err := c.FollowUp(tallyman.Command{ID: r.idIn(t, shard, c.ID(), 0), Kind: "echo"}); err != nil {
					return tallyman.Result{}, err
				}
			}
			return tallyman.Result{}, nil
		})},
		tallyman.Route{Kind: "hold", Eager: true, Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			entered <- c.ID()
			<-ctx.Done()
			close(listening)
			return tallyman.Result{}, context.Cause(ctx)
		})},
	)
	w, _ := start(t, r.Pool, tallyman.WorkerConfig{Mux: mux})
	var completed, parks, absorbed uint64
	for shard := range 3 {
		echoed, failed, family := r.idIn(t, shard, "e", 0), r.idIn(t, shard, "f", 0), r.idIn(t, shard, "p", 0)
		if sub := r.submit(t, tallyman.Command{ID: echoed, Kind: "echo", Payload: []byte("x")}); sub.Sequence == 0 {
			t.Errorf("submit %s: got %+v, want a sequence", echoed, sub)
		}
		if got, err := r.Wait(r.ctx, echoed); err != nil || string(got.Result) != "x" {
			t.Errorf("wait for %s: got %+v, %v", echoed, got, err)
		}
		if sub := r.submit(t, tallyman.Command{ID: echoed, Kind: "echo", Payload: []byte("x")}); !sub.Absorbed || sub.State != tallyman.Completed {
			t.Errorf("submit %s again: got %+v, want it absorbed as completed", echoed, sub)
		}
		if _, err := r.Submit(r.ctx, tallyman.Command{ID: echoed, Kind: "echo", Payload: []byte("y")}); !errors.Is(err, tallyman.ErrConflict) {
			t.Errorf("submit %s with another payload: got %v, want a conflict", echoed, err)
		}
		at := r.Shards()[shard]
		eventually(t, r.ctx, "the first copy to leave the stream", func() bool { // a receipt is there before its ack
			_, err := at.Commands.Find(r.ctx, command.Token(echoed))
			return errors.Is(err, stream.ErrNotFound)
		})
		copied := r.publish(t, at.Commands.Subject("default", "echo", command.Token(echoed)), "x")
		r.submit(t, tallyman.Command{ID: failed, Kind: "fail"})
		if got, err := r.Wait(r.ctx, failed); !errors.Is(err, tallyman.ErrParked) || got.Attempt != 3 {
			t.Errorf("wait for %s: got %+v, %v, want it parked at attempt 3", failed, got, err)
		}
		r.submit(t, tallyman.Command{ID: family, Kind: "parent"})
		for child := range 3 {
			if _, err := r.Wait(r.ctx, r.idIn(t, child, family, 0)); err != nil {
				t.Errorf("wait for a follow-up of %s in shard %d: %v", family, child, err)
			}
		}
		r.emptied(t)
		if e, err := at.Records.Read(r.ctx, kvstate.AbsorbedKey(copied)); err != nil || string(e.Raw) != echoed {
			t.Errorf("sequence %d of shard %d: got %q, %v, want it absorbed", copied, shard, e.Raw, err)
		}
		completed, parks, absorbed = completed+5, parks+1, absorbed+1
	}
	if err := w.Ready(r.ctx); err != nil {
		t.Errorf("ready: %v", err)
	}
	held := r.idIn(t, 2, "h", 0)
	r.submit(t, tallyman.Command{ID: held, Kind: "hold"})
	<-entered
	at := r.Shards()[2]
	if _, err := desk.New(at.Commands, at.Records).Cancel(r.ctx, desk.Act{By: "ann"}, held); err != nil {
		t.Fatal(err)
	}
	<-listening
	r.emptied(t)
	if got := r.balanced(t); got.Completed != completed || got.Parked != parks || got.Absorbed != absorbed || got.Cancelled != 1 || got.Pending != 0 {
		t.Errorf("books: got %+v, want %d completed, %d parked, %d absorbed, 1 cancelled", got, completed, parks, absorbed)
	}
}

func TestShards_Takeover(t *testing.T) {
	t.Parallel()
	settings := spread()
	settings.Lease = mortal().Lease
	r := newRig(t, settings, tallyman.Topology{})
	entered := make(chan string, 3)
	nc := connect(t, r.server.URL())
	lost := open(t, nc)
	block := make(chan struct{})
	w, err := lost.NewWorker(tallyman.WorkerConfig{Mux: handle("k", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if err := c.Progress(r.ctx, 7, []byte("seven")); err != nil {
			return tallyman.Result{}, err
		}
		entered <- c.ID()
		<-block
		return tallyman.Result{Body: []byte("too late")}, nil
	}), Drain: -1, Grace: time.Millisecond, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run(r.ctx) }()
	var ids []string
	for shard := range 3 {
		ids = append(ids, r.idIn(t, shard, "t", 0))
		r.submit(t, tallyman.Command{ID: ids[shard], Kind: "k"})
	}
	for range ids {
		<-entered
	}
	nc.Close()
	if err := <-ended; !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("the worker without a connection ended with %v", err)
	}
	close(block)
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("k", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: fmt.Appendf(nil, "%d%s", c.Offset(), c.Checkpoint())}, nil
	})})
	for _, id := range ids {
		if got, err := r.Wait(r.ctx, id); err != nil || string(got.Result) != "7seven" || got.Attempt != 2 {
			t.Errorf("wait for %s: got %+v, %v, want attempt 2 to go on from 7", id, got, err)
		}
	}
	r.emptied(t)
	r.balanced(t)
}

func TestShards_ReadyNamesTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, spread(), tallyman.Topology{})
	w, _ := start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	eventually(t, r.ctx, "a worker that is ready", func() bool { return w.Ready(r.ctx) == nil })
	s, err := r.js.Stream(r.ctx, "main_2_commands")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteConsumer(r.ctx, "default"); err != nil {
		t.Fatal(err)
	}
	eventually(t, r.ctx, "a worker that is not ready", func() bool { return w.Ready(r.ctx) != nil })
	if got, want := w.Ready(r.ctx), "main_2_commands"; got == nil || !strings.Contains(got.Error(), want) || !strings.Contains(got.Error(), "--pool main ") {
		t.Errorf("ready: got %v, want an error with %q and the pool's name", got, want)
	}
	other, err := r.NewWorker(tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	if got := other.Run(r.ctx); !errors.Is(got, tallyman.ErrNoQueue) || !strings.Contains(got.Error(), "main_2_commands") {
		t.Errorf("run: got %v, want ErrNoQueue with the name of the stream", got)
	}
}

func TestShards_StatesAndWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, spread(), tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	const n = 40
	var ids []string
	seen := make(chan tallyman.Change)
	watching, stop := context.WithCancel(r.ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		for c, err := range r.Watch(watching, tallyman.Filter{Current: true}) {
			if err != nil {
				ended <- err
				return
			}
			seen <- c
		}
	}()
	for i := range n {
		ids = append(ids, fmt.Sprintf("w-%d", i))
		r.submit(t, tallyman.Command{ID: ids[i], Kind: "echo"})
	}
	found := map[string]int{}
	last := make([]uint64, 3)
	for len(found) < n {
		c := <-seen
		if c.Revision <= last[c.Shard] {
			t.Errorf("revision %d of shard %d after %d", c.Revision, c.Shard, last[c.Shard])
		}
		found[c.ID], last[c.Shard] = c.Shard, c.Revision
	}
	for id, shard := range found {
		if want := r.ShardOf(command.Token(id)).Index; shard != want {
			t.Errorf("%s changed in shard %d, want %d", id, shard, want)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("watch ended with %v, want it cancelled", err)
	}
	states, err := r.States(r.ctx, append([]string{"unknown"}, ids...))
	if err != nil {
		t.Fatal(err)
	}
	if states[0] != "" || slices.ContainsFunc(states[1:], func(s tallyman.State) bool { return s != tallyman.Completed }) {
		t.Errorf("states: got %v, want one empty, then all completed", states)
	}

	t.Run("goes on behind what was seen", func(t *testing.T) {
		extra := r.idIn(t, 1, "x", 0)
		r.submit(t, tallyman.Command{ID: extra, Kind: "echo"})
		for c, err := range r.Watch(r.ctx, tallyman.Filter{AfterEach: last}) {
			if err != nil {
				t.Fatal(err)
			}
			if c.ID != extra {
				t.Errorf("got a change of %s, want %s first", c.ID, extra)
			}
			break
		}
	})
	t.Run("of some ids", func(t *testing.T) {
		want := map[string]bool{r.idIn(t, 0, "w", 0): true, r.idIn(t, 2, "w", 1): true}
		f := tallyman.Filter{Current: true}
		for id := range want {
			f.IDs = append(f.IDs, id)
		}
		for c, err := range r.Watch(r.ctx, f) {
			if err != nil {
				t.Fatal(err)
			}
			if !want[c.ID] {
				t.Errorf("got a change of %s", c.ID)
			}
			if delete(want, c.ID); len(want) == 0 {
				break
			}
		}
	})
	t.Run("refuses one revision for all shards", func(t *testing.T) {
		for _, err := range r.Watch(r.ctx, tallyman.Filter{After: 3}) {
			if !errors.Is(err, tallyman.ErrSettings) {
				t.Errorf("got %v, want ErrSettings", err)
			}
		}
	})
}

func TestShards_MoreOfThemThanSlots(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Shards = 16
	r := newRig(t, settings, tallyman.Topology{})
	const n = 400
	for i := range n {
		r.submit(t, tallyman.Command{ID: fmt.Sprint("c-", i), Kind: "echo"})
	}
	for range 2 {
		start(t, open(t, connect(t, r.server.URL())), tallyman.WorkerConfig{Concurrency: 2, Mux: handle("echo", echo)})
	}
	r.emptied(t)
	for shard := range settings.Shards { // everybody listens
		id := r.idIn(t, shard, "late", 0)
		r.submit(t, tallyman.Command{ID: id, Kind: "echo"})
		if _, err := r.Wait(r.ctx, id); err != nil {
			t.Errorf("wait for %s of shard %d: %v", id, shard, err)
		}
	}
	r.emptied(t)
	if got := r.balanced(t); got.Completed != n+16 {
		t.Errorf("books: got %d completed, want %d", got.Completed, n+16)
	}
}
