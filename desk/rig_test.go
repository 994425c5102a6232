package desk

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	pooltest.SideBySide(4)
	goleak.VerifyTestMain(m)
}

// brisk are settings under which the first failure parks. No machine is so busy
// that the lease runs out, which would burn the one attempt.
var brisk = tallyman.Settings{Lease: 30 * time.Second, MaxAttempts: 1, BackoffMin: time.Minute, BackoffMax: time.Minute}

var (
	ann = Act{By: "ann", Why: "the disk was full"}
	bob = Act{By: "bob"}
)

// rig is a server with a pool and its desk.
type rig struct {
	*tallyman.Pool
	desk *Desk
	nc   *nats.Conn
	ctx  context.Context
}

func newRig(t testing.TB, settings tallyman.Settings) *rig {
	t.Helper()
	ctx := pooltest.Context(t)
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, settings, tallyman.Topology{})
	return &rig{Pool: p, desk: New(p.Commands(), p.Records()), nc: nc, ctx: ctx}
}

func (r *rig) submit(t testing.TB, c tallyman.Command) uint64 {
	t.Helper()
	s, err := r.Submit(r.ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return s.Sequence
}

// seen is what the last handler of a command saw.
type seen struct {
	mu       sync.Mutex
	attempts []int
	offsets  []uint64
	fail     bool
	running  chan struct{} // gets one when a "long" begins
	ended    chan error    // gets the cause when a "long" ends
}

func newSeen(fail bool) *seen {
	return &seen{fail: fail, running: make(chan struct{}, 8), ended: make(chan error, 8)}
}

// work starts a worker. Kind "frail" fails while it is told to; "long" runs
// until its context ends; all others echo.
func (r *rig) work(t testing.TB, s *seen) (stop func()) {
	t.Helper()
	mux := &tallyman.Mux{}
	mux.Handle("frail", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.attempts, s.offsets = append(s.attempts, c.Attempt()), append(s.offsets, c.Offset())
		if !s.fail {
			return tallyman.Result{Body: c.Payload()}, nil
		}
		if err := c.Progress(ctx, 7, []byte("state")); err != nil {
			return tallyman.Result{}, err
		}
		return tallyman.Result{}, errors.New("it broke")
	}))
	mux.Handle("long", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		s.running <- struct{}{}
		<-ctx.Done()
		s.ended <- context.Cause(ctx)
		return tallyman.Result{Body: []byte("too late")}, nil
	}))
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	w, err := r.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Drain: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return pooltest.Run(t, w.Run)
}

func (r *rig) record(t testing.TB, id string) *kvstate.Record {
	t.Helper()
	rec, err := r.Find(r.ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// await polls until ok.
func (r *rig) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	pooltest.Await(t, r.ctx, what, ok)
}

// emptied waits until nothing is left in the stream.
func (r *rig) emptied(t testing.TB) {
	t.Helper()
	r.await(t, "an empty stream", func() bool {
		st, err := r.Commands().State(r.ctx)
		return err == nil && st.Messages == 0
	})
}

// parked brings a command onto the desk: a worker fails at it.
func (r *rig) parked(t testing.TB, id, payload string) {
	t.Helper()
	stop := r.work(t, newSeen(true))
	defer stop()
	r.submit(t, tallyman.Command{ID: id, Kind: "frail", Payload: []byte(payload)})
	if _, err := r.Wait(r.ctx, id); !errors.Is(err, tallyman.ErrParked) {
		t.Fatalf("got %v, want it parked", err)
	}
	r.emptied(t)
}

// placed writes a parked record as a worker does, for a sequence that has left
// the stream, and returns its key.
func (r *rig) placed(t testing.TB, c tallyman.Command, reason kvstate.Reason, change ...func(*kvstate.Record)) command.Token {
	t.Helper()
	seq := r.submit(t, c)
	env, err := dedupe.Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := (&kvstate.Record{ID: c.ID, Kind: c.Kind, Queue: env.Queue, Digest: env.Digest, Seqs: []uint64{seq}, Attempt: 1}).
		Advance(kvstate.Parked, "worker-1", string(reason), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	rec.Reason, rec.Error, rec.Command = reason, "it broke", &env.Command
	for _, f := range change {
		f(rec)
	}
	if _, err := r.Records().WriteWait(r.ctx, env.Token, rec); err != nil {
		t.Fatal(err)
	}
	if err := r.Commands().Remove(r.ctx, seq); err != nil {
		t.Fatal(err)
	}
	return env.Token
}

// balanced audits the pool.
func (r *rig) balanced(t testing.TB) audit.Report {
	t.Helper()
	report, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Balanced {
		t.Errorf("%s: %+v", report.Summary(), report)
	}
	return report
}

// flaky is a command stream whose publications fail as told.
type flaky struct {
	commands
	mu   sync.Mutex
	fail func(command.Envelope) (sent bool, err error) // nil error: pass it on
}

func (f *flaky) Republish(env command.Envelope, done func(stream.Accepted, error)) error {
	f.mu.Lock()
	fail := f.fail
	f.mu.Unlock()
	if fail == nil {
		return f.commands.Republish(env, done)
	}
	sent, err := fail(env)
	switch {
	case err == nil:
		return f.commands.Republish(env, done)
	case sent:
		return f.commands.Republish(env, func(stream.Accepted, error) { done(stream.Accepted{}, err) })
	}
	return err
}
