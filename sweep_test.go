package tallyman_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// sweeping are settings of a pool whose commands are swept out.
var sweeping = func() tallyman.Settings {
	s := brisk
	s.Removal = tallyman.RemovalSweep
	return s
}()

// quick sweeps often.
var quick = tallyman.SweepPace{Every: 20 * time.Millisecond, ByQueueEvery: time.Millisecond}

// sweeper runs a worker that sweeps at the given pace.
func sweeper(t testing.TB, p *tallyman.Pool, pace tallyman.SweepPace, cfg tallyman.WorkerConfig) (w *tallyman.Worker, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = silent
	}
	w, err := p.NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Pace(pace)
	return w, pooltest.Run(t, w.Run)
}

// settled waits for the outcome of every id.
func (r *rig) settled(t testing.TB, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if got, err := r.Wait(r.ctx, id); err != nil || got.State != tallyman.Completed {
			t.Fatalf("wait for %s: got %+v, %v, want it completed", id, got, err)
		}
	}
}

func (r *rig) lying(t testing.TB) []uint64 {
	t.Helper()
	state, err := r.Commands().State(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	seqs := []uint64{}
	if err := r.Commands().Sequences(r.ctx, state.LastSeq, func(seq uint64, _ string) error {
		seqs = append(seqs, seq)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return seqs
}

func (r *rig) want(t testing.TB, seqs ...uint64) {
	t.Helper()
	if got := r.lying(t); !slices.Equal(got, seqs) {
		t.Errorf("in the stream: got sequences %v, want %v", got, seqs)
	}
}

// holds waits until the stream holds exactly these sequences.
func (r *rig) holds(t testing.TB, seqs ...uint64) {
	t.Helper()
	var got []uint64
	defer func() {
		if t.Failed() {
			t.Logf("in the stream at last: %v", got)
		}
	}()
	eventually(t, r.ctx, fmt.Sprintf("sequences %v to be all that is in the stream", seqs), func() bool {
		got = r.lying(t)
		return slices.Equal(got, seqs)
	})
}

// many submits n commands to a queue and returns their ids.
func (r *rig) many(t testing.TB, queue, prefix string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", prefix, i))
	}
	err := r.NewProducer(tallyman.ProducerConfig{}).SubmitMany(r.ctx, func(yield func(tallyman.Command) bool) {
		for _, id := range ids {
			if !yield(tallyman.Command{ID: id, Kind: "echo", Queue: queue, Payload: []byte(id)}) {
				return
			}
		}
	}, func(_ int, s tallyman.Submission, err error) {
		if err != nil || s.Absorbed {
			t.Errorf("submit %s: got %+v, %v", s.ID, s, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestSweep_LeavesNothing is the usual course: what is settled goes, what comes
// later is delivered, and workers tell each other.
func TestSweep_LeavesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	a, stopA := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Concurrency: 8})
	b, stopB := sweeper(t, open(t, connect(t, r.server.URL())), quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Concurrency: 8})
	for round := range 3 {
		r.settled(t, r.many(t, "", fmt.Sprint(round), 1000)...)
		r.emptied(t)
	}
	q, err := r.Commands().Queue(r.ctx, "default")
	if err != nil || q.Pending != 0 || q.Outstanding != 0 || q.Floor != 3000 {
		t.Errorf("queue: got %+v, %v; want nothing pending and a floor of 3000", q, err)
	}
	eventually(t, r.ctx, "ledgers to forget what has left the stream", func() bool {
		return !a.Knows("default", 3000) && !b.Knows("default", 3000)
	})
	stopA()
	stopB()
	if got := r.balanced(t); got.Completed != 3000 || got.Pending != 0 {
		t.Errorf("audit: got %+v, want 3000 completed", got)
	}
}

// TestSweep_OfShardsAndGroups sweeps every shard, with what lies astray in the
// first, while writes are committed in groups.
func TestSweep_OfShardsAndGroups(t *testing.T) {
	t.Parallel()
	settings := sweeping
	settings.Shards, settings.Commit = 3, tallyman.CommitGroup
	r := newRig(t, settings, tallyman.Topology{})
	strays := []string{r.idIn(t, 1, "s", 0), r.idIn(t, 2, "s", 0)}
	for _, id := range strays {
		r.publish(t, "main.commands.default.echo."+id, "x")
	}
	_, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, append(r.many(t, "", "c", 600), strays...)...)
	for _, s := range r.Shards() {
		eventually(t, r.ctx, fmt.Sprintf("shard %d to be empty", s.Index), func() bool {
			state, err := s.Commands.State(r.ctx)
			return err == nil && state.Messages == 0
		})
	}
	stop()
	if got := r.balanced(t); got.Completed != 602 || got.Absorbed != 2 {
		t.Errorf("audit: got %+v, want 602 completed and 2 absorbed", got)
	}
}

// TestSweep_WorkersTellEachOther guards against one worker reading the records
// of all: what another has acked, it hears of.
func TestSweep_WorkersTellEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{Queues: []string{"default", "other"}})
	gate := make(chan struct{})
	worker, _ := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.ID() == "first-0" {
			<-gate // so that nothing behind it is swept
		}
		return echo(ctx, c)
	})})
	listener, _ := sweeper(t, open(t, connect(t, r.server.URL())), quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Queues: []string{"other"}})
	r.settled(t, r.many(t, "other", "o", 1)...)
	r.emptied(t) // so the listener sweeps, and hears
	r.many(t, "", "first", 1)
	ids := r.many(t, "", "c", 100)
	r.settled(t, ids...)
	eventually(t, r.ctx, "the listener to know what the worker has acked", func() bool { return listener.Knows("default", 102) })
	if !worker.Knows("default", 102) || listener.Knows("default", 2) {
		t.Error("known: want 102 and not 2, which is at work")
	}
	close(gate)
	r.emptied(t)
}

// TestSweep_AtTheEnd guards against a pool that stays full when its workers have
// ended before the next round.
func TestSweep_AtTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Every: time.Hour}, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "c", 500)...)
	if n := len(r.lying(t)); n != 500 {
		t.Errorf("before the end the stream holds %d commands, want all 500", n)
	}
	stop()
	r.want(t)
	r.balanced(t)
}

func TestSweep_Denied(t *testing.T) {
	t.Parallel()
	s, as := guarded(t, `
		{user: admin, password: pw}
		{user: worker, password: pw, permissions: {publish: {deny: ["$JS.API.STREAM.PURGE.>", "$JS.API.CONSUMER.NAMES.>", "main.settled.>"]}, subscribe: {deny: "main.settled.>"}}}`)
	ctx := pooltest.Context(t)
	admin := connect(t, as("admin"))
	if err := tallyman.Create(ctx, admin, "main", sweeping, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	r := &rig{open(t, connect(t, as("worker"))), s, admin, pooltest.JetStream(t, admin), ctx}
	log := &transcript{}
	_, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
	for i := range 20 {
		r.settled(t, r.many(t, "", fmt.Sprint(i), 10)...)
	}
	eventually(t, ctx, "a word about the permission", func() bool { return log.has("$JS.API.STREAM.PURGE.main_commands") })
	stop()
	if got := log.count("may not sweep"); got != 1 || !log.has("docs/operations.md") {
		t.Errorf("reported %d times, want once, with a remedy", got)
	}
	if n := len(r.lying(t)); n != 200 {
		t.Errorf("the stream holds %d commands, want all 200", n)
	}
	r.balanced(t)
	// Another worker, which may, makes up for it.
	sweeper(t, open(t, admin), quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "last", 1)...)
	r.emptied(t)
}

// TestSweep_OnACluster sweeps where the leaders of stream and consumer differ,
// and move.
func TestSweep_OnACluster(t *testing.T) {
	t.Parallel()
	r, _ := newClusterRig(t, sweeping)
	sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	sweeper(t, open(t, connect(t, r.nc.ConnectedUrl())), quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	for i, move := range []string{"", "$JS.API.CONSUMER.LEADER.STEPDOWN.main_commands.default", "$JS.API.STREAM.LEADER.STEPDOWN.main_commands", "$JS.API.STREAM.LEADER.STEPDOWN.KV_main"} {
		if move != "" {
			eventually(t, r.ctx, "the leader to step down", func() bool {
				_, err := r.nc.Request(move, nil, 5*time.Second)
				return err == nil
			})
		}
		r.settled(t, r.many(t, "", fmt.Sprint(i), 200)...)
		r.emptied(t)
	}
	if got := r.balanced(t); got.Completed != 800 || got.Pending != 0 {
		t.Errorf("audit: got %+v, want 800 completed", got)
	}
}
