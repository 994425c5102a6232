package tallyman_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

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
	log := &transcript{}
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
	log := &transcript{}
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
		log := &transcript{}
		w, stop := sweeper(t, r.Pool, quick, tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
		eventually(t, r.ctx, "the worker to have started", func() bool { return w.Ready(r.ctx) == nil }) // it would not on that consumer
		r.recreate(t, func(cfg *jetstream.ConsumerConfig) {
			cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, 3
		})
		r.many(t, "", "early", 2)
		r.settled(t, r.many(t, "", "late", 3)...)
		eventually(t, r.ctx, "a word about the consumer", func() bool { return log.has("does not deliver every command") })
		stop()
		r.want(t, 1, 2, 3, 4, 5)
	})
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
	got, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Pending != 1 || got.LingeringCount != 1 || got.FindingCount != 1 {
		t.Errorf("audit: got %+v, want the one pending, and lingering", got)
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
