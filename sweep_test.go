package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
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

func TestSweep_Create(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	t.Run("makes a stream from which an ack removes nothing", func(t *testing.T) {
		str, err := r.js.Stream(r.ctx, stream.Name("main"))
		if err != nil {
			t.Fatal(err)
		}
		cfg := str.CachedInfo().Config
		if cfg.Retention != jetstream.LimitsPolicy || cfg.Discard != jetstream.DiscardNew || !cfg.DiscardNewPerSubject || cfg.MaxMsgsPerSubject != 1 || cfg.MaxAge != 0 {
			t.Errorf("got %+v", cfg)
		}
		if r.Settings().Removal != tallyman.RemovalSweep || !r.Commands().Sweeps() {
			t.Errorf("opened: got removal %s", r.Settings().Removal)
		}
	})
	t.Run("is safe to repeat", func(t *testing.T) {
		for _, s := range []tallyman.Settings{{}, sweeping} {
			if err := tallyman.Create(r.ctx, r.nc, "main", s, tallyman.Topology{}); err != nil {
				t.Error(err)
			}
		}
	})
	for _, change := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuses the other way, with change %v", change), func(t *testing.T) {
			err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{Removal: tallyman.RemovalAck}, tallyman.Topology{Change: change})
			if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "make another pool") {
				t.Errorf("got %v, want ErrSettings and what to do", err)
			}
			if p := open(t, r.nc); p.Settings().Removal != tallyman.RemovalSweep {
				t.Errorf("afterwards the removal is %s", p.Settings().Removal)
			}
		})
	}
	t.Run("refuses a pool that was made with acks", func(t *testing.T) {
		if err := tallyman.Create(r.ctx, r.nc, "acks", tallyman.Settings{}, tallyman.Topology{}); err != nil {
			t.Fatal(err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "acks", sweeping, tallyman.Topology{Change: true}); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("got %v, want ErrSettings", err)
		}
	})
	t.Run("a pool whose stream was made the other way does not open", func(t *testing.T) {
		if err := tallyman.Create(r.ctx, r.nc, "odd", sweeping, tallyman.Topology{}); err != nil {
			t.Fatal(err)
		}
		if err := r.js.DeleteStream(r.ctx, stream.Name("odd")); err != nil {
			t.Fatal(err)
		}
		if err := stream.Create(r.ctx, r.js, stream.Config{Pool: "odd", Lease: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := tallyman.Open(r.ctx, r.nc, "odd"); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("open: got %v, want ErrSettings", err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "odd", sweeping, tallyman.Topology{}); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("create: got %v, want ErrSettings", err)
		}
	})
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

// TestSweep_ConsumerSetForward guards against the sweep of commands that a
// consumer was made to jump over.
func TestSweep_ConsumerSetForward(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	early := r.many(t, "", "early", 7)
	late := r.many(t, "", "late", 3)
	reset, err := r.nc.RequestWithContext(r.ctx, "$JS.API.CONSUMER.RESET.main_commands.default", []byte(`{"seq":8}`))
	if err != nil || strings.Contains(string(reset.Data), "error") {
		t.Fatalf("reset the consumer: %s, %v", reset.Data, err)
	}
	log := &lines{}
	_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Every: 10 * time.Millisecond, ByQueueEvery: time.Millisecond, Patient: time.Millisecond},
		tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
	r.settled(t, late...)
	r.holds(t, 1, 2, 3, 4, 5, 6, 7) // the late ones are removed, one by one
	eventually(t, r.ctx, "a word about what nothing accounts for", func() bool {
		return log.has("7 commands of queue") && log.has("sequences 1 (key early-0) to 7") && log.has("nothing accounts for them")
	})
	stop()
	r.want(t, 1, 2, 3, 4, 5, 6, 7)
	if q, err := r.Commands().Queue(r.ctx, "default"); err != nil || q.Floor < 10 {
		t.Errorf("the floor is %d, %v: this test wants it beyond all commands", q.Floor, err)
	}
	r.recreate(t, nil)
	sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, early...)
	r.emptied(t)
	r.balanced(t)
}

// TestSweep_AfterReceiptsExpired: where no worker was there for longer than receipts
// are kept, nothing accounts for what was settled; what to do then is said, and works.
func TestSweep_AfterReceiptsExpired(t *testing.T) {
	t.Parallel()
	settings := sweeping
	settings.Retention = 3 * time.Second
	r := newRig(t, settings, tallyman.Topology{})
	_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Off: true}, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	old := r.many(t, "", "old", 5)
	r.settled(t, old...)
	stop()
	eventually(t, r.ctx, "every receipt to expire, in whatever order", func() bool {
		return !slices.ContainsFunc(old, func(id string) bool {
			_, err := r.Find(r.ctx, id)
			return !errors.Is(err, tallyman.ErrNotFound)
		})
	})
	log := &lines{}
	sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
	eventually(t, r.ctx, "the command that takes them out", func() bool {
		return log.has("nats stream purge main_commands --subject 'main.commands.default.>' --seq 6")
	})
	r.want(t, 1, 2, 3, 4, 5) // nobody but a person knows that
	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(r.ctx, jetstream.WithPurgeSubject("main.commands.default.>"), jetstream.WithPurgeSequence(6)); err != nil {
		t.Fatal(err)
	}
	r.settled(t, r.many(t, "", "old", 5)...)
	r.emptied(t)
}

// recreate deletes the consumer of the default queue and makes it anew.
func (r *rig) recreate(t testing.TB, change func(*jetstream.ConsumerConfig)) {
	t.Helper()
	cons, err := r.js.Consumer(r.ctx, "main_commands", "default")
	if err != nil {
		t.Fatal(err)
	}
	cfg := cons.CachedInfo().Config
	if change != nil {
		change(&cfg)
	}
	if err := r.js.DeleteConsumer(r.ctx, "main_commands", "default"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.CreateConsumer(r.ctx, "main_commands", cfg); err != nil {
		t.Fatal(err)
	}
}

func TestSweep_ConsumerMadeAnew(t *testing.T) {
	t.Parallel()
	t.Run("delivers what is settled once more, and that is absorbed without a trace", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sweeping, tallyman.Topology{})
		_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Off: true}, tallyman.WorkerConfig{Mux: handle("echo", echo)})
		ids := r.many(t, "", "c", 20)
		r.settled(t, ids...)
		stop()
		r.recreate(t, nil)
		pending := r.many(t, "", "d", 3)
		seen := &journal{}
		sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Observe: seen.observe})
		r.settled(t, pending...)
		r.emptied(t)
		if got := seen.count(tallyman.EventAbsorbed, ""); got != 20 {
			t.Errorf("absorbed %d, want 20", got)
		}
		if got := seen.count(tallyman.EventCompleted, ""); got != 3 {
			t.Errorf("completed %d, want 3: the others were before", got)
		}
		if got := r.balanced(t); got.Absorbed != 0 {
			t.Errorf("audit: got %d entries of absorbed copies, want none", got.Absorbed)
		}
	})
	t.Run("from a later start, has no floor to rely on", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, sweeping, tallyman.Topology{})
		r.many(t, "", "early", 2)
		r.recreate(t, func(cfg *jetstream.ConsumerConfig) {
			cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, 3
		})
		log := &lines{}
		_, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
		r.settled(t, r.many(t, "", "late", 3)...)
		eventually(t, r.ctx, "a word about the consumer", func() bool { return log.has("does not deliver every command") })
		stop()
		r.want(t, 1, 2, 3, 4, 5)
	})
}

// lines is a log to look into.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(part string) bool { return l.count(part) > 0 }

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// take receives one command as a worker does that then dies.
func (r *rig) take(t testing.TB) jetstream.Msg {
	t.Helper()
	cons, err := r.js.Consumer(r.ctx, "main_commands", "default")
	if err != nil {
		t.Fatal(err)
	}
	m, err := cons.Next(jetstream.FetchContext(r.ctx))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// complete writes a receipt as a worker does.
func (r *rig) complete(t testing.TB, c tallyman.Command, seq uint64, followUps ...tallyman.Command) {
	t.Helper()
	first := &kvstate.Record{ID: c.ID, Kind: c.Kind, Queue: "default", Attempt: 1}
	env, err := dedupe.Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	first.Digest = env.Digest
	rec, err := first.Advance(kvstate.Completed, "someone", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Seqs, rec.FollowUps = []uint64{seq}, followUps
	if _, err := r.Records().WriteWait(r.ctx, env.Token, rec); err != nil {
		t.Fatal(err)
	}
}

// TestSweep_CrashBetweenRecordAndAck guards against taking out a command whose
// follow-ups may not be born, because its record says that it is completed.
func TestSweep_CrashBetweenRecordAndAck(t *testing.T) {
	t.Parallel()
	settings := sweeping
	settings.Lease = mortal().Lease
	r := newRig(t, settings, tallyman.Topology{})
	parent := tallyman.Command{ID: "p", Kind: "echo"}
	r.submit(t, parent)
	r.take(t)
	r.complete(t, parent, 1, tallyman.Command{ID: "child", Kind: "echo"})
	pace := quick
	pace.Patient = time.Millisecond
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "c", 5)...)
	r.holds(t, 1) // until the lease of whoever took it has run out
	r.settled(t, "child")
	r.emptied(t)
	r.balanced(t)
}

// TestSweep_ProvedByRecords is the sweep of what no living worker has acked.
func TestSweep_ProvedByRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Off: true}, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "before", 700)...)
	stop()
	parent := tallyman.Command{ID: "p", Kind: "echo"}
	seq := r.submit(t, parent).Sequence
	m := r.take(t)
	r.complete(t, parent, seq, tallyman.Command{ID: "child", Kind: "echo"})
	if err := m.DoubleAck(r.ctx); err != nil { // by somebody who did not care for the follow-up
		t.Fatal(err)
	}
	_, stop = sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, "child")
	r.emptied(t)
	stop()
	r.balanced(t)
}

// TestSweep_AckedWithoutRecord guards against the sweep of what was acked by
// hand and has no outcome.
func TestSweep_AckedWithoutRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	r.submit(t, tallyman.Command{ID: "lost", Kind: "echo"})
	if err := r.take(t).DoubleAck(r.ctx); err != nil {
		t.Fatal(err)
	}
	_, stop := sweeper(t, r.Pool, tallyman.SweepPace{Every: 10 * time.Millisecond, Patient: time.Millisecond}, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "c", 5)...)
	r.holds(t, 1)
	stop()
	r.want(t, 1)
	if got := r.balanced(t); got.Pending != 1 {
		t.Errorf("audit: got %d pending, want the one", got.Pending)
	}
}

// TestSweep_CopiesThatAwaitIt is about commands in the stream that are settled.
func TestSweep_CopiesThatAwaitIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	sweeper(t, r.Pool, tallyman.SweepPace{Every: time.Hour}, tallyman.WorkerConfig{Mux: route(
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
		tallyman.Route{Kind: "no", Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, tallyman.Reject(errors.New("never"))
		})},
	)})
	c := tallyman.Command{ID: "c", Kind: "echo", Payload: []byte("1")}
	r.submit(t, c)
	r.settled(t, "c")
	t.Run("a repeated submission is absorbed with the state of the record", func(t *testing.T) {
		if got, err := r.Submit(r.ctx, c); err != nil || !got.Absorbed || got.State != tallyman.Completed {
			t.Errorf("got %+v, %v", got, err)
		}
		other := c
		other.Payload = []byte("2")
		if _, err := r.Submit(r.ctx, other); !errors.Is(err, tallyman.ErrConflict) {
			t.Errorf("with another payload: got %v, want ErrConflict", err)
		}
		r.want(t, 1)
	})
	t.Run("what is parked leaves at once", func(t *testing.T) {
		r.submit(t, tallyman.Command{ID: "n", Kind: "no"})
		r.record(t, "n", parked)
		r.holds(t, 1)
	})
	t.Run("so does a copy that was parked aside, and makes room for the right one", func(t *testing.T) {
		seq := r.publish(t, "main.commands.default.echo.bad", "x", command.HeaderDigest, "00")
		r.recordAt(t, kvstate.MalformedKey(seq), parked)
		r.submit(t, tallyman.Command{ID: "bad", Kind: "echo"})
		r.settled(t, "bad")
	})
	if got := r.balanced(t); got.Pending != 0 {
		t.Errorf("audit: got %d pending, want none: all that is in the stream is settled", got.Pending)
	}
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

func TestSweep_Denied(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(conf, []byte(`authorization { users: [
		{user: admin, password: pw}
		{user: worker, password: pw, permissions: {publish: {deny: ["$JS.API.STREAM.PURGE.>", "$JS.API.CONSUMER.NAMES.>", "main.settled.>"]}, subscribe: {deny: "main.settled.>"}}}
	]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), ConfigFile: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	as := func(user string) string { return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1) }
	ctx := pooltest.Context(t)
	admin := connect(t, as("admin"))
	if err := tallyman.Create(ctx, admin, "main", sweeping, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	r := &rig{open(t, connect(t, as("worker"))), s, admin, pooltest.JetStream(t, admin), ctx}
	log := &lines{}
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
