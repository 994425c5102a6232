package tallyman_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestMain(m *testing.M) { pooltest.Main(m) }

// brisk are settings under which failures take milliseconds. No test waits for
// that lease to run out, and no machine is so busy that one does: it would burn
// an attempt.
var brisk = tallyman.Settings{Lease: 30 * time.Second, MaxAttempts: 3, BackoffMin: 50 * time.Millisecond, BackoffMax: time.Second}

// mortal is brisk for tests that wait until the lease of a worker that is gone
// has run out. It outlasts a machine that stands still for some seconds.
func mortal() tallyman.Settings {
	s := brisk
	s.Lease = 5 * time.Second
	return s
}

// rig is a server with a pool, and a connection beside the pool's.
type rig struct {
	*tallyman.Pool
	server *embedded.Server
	nc     *nats.Conn
	js     jetstream.JetStream
	ctx    context.Context
}

// newRig starts a server with a pool. Its context bounds the whole test.
func newRig(t testing.TB, settings tallyman.Settings, topology tallyman.Topology) *rig {
	t.Helper()
	s := pooltest.Server(t)
	ctx := pooltest.Context(t)
	nc := pooltest.Connect(t, s.URL())
	if err := tallyman.Create(ctx, nc, "main", pooltest.Settings(settings), topology); err != nil {
		t.Fatal(err)
	}
	return &rig{pooltest.Open(t, pooltest.Connect(t, s.URL())), s, nc, pooltest.JetStream(t, nc), ctx}
}

// guarded starts a server with users, each with password "pw", and says under which
// URL they connect.
func guarded(t testing.TB, users string) (s *embedded.Server, as func(user string) string) {
	t.Helper()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), ConfigFile: writeFile(t, "nats.conf", "authorization { users: ["+users+"] }")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, func(user string) string { return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1) }
}

// By shorter names, since the tests here use them everywhere.
var (
	connect    = pooltest.Connect
	open       = pooltest.Open
	eventually = pooltest.Await
)

// submit submits a command that is to be accepted.
func (r *rig) submit(t testing.TB, c tallyman.Command) tallyman.Submission {
	t.Helper()
	sub, err := r.Submit(r.ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// entry reads what the bucket holds: that of the id's shard, or the first for what is the pool's.
func (r *rig) entry(t testing.TB, key command.Token) kvstate.Entry {
	t.Helper()
	in := r.Records()
	if !strings.HasPrefix(string(key), "_") {
		in = r.ShardOf(key).Records
	}
	e, err := in.Read(r.ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// record polls for the record of an id until it satisfies ok.
func (r *rig) record(t testing.TB, id string, ok func(*kvstate.Record) bool) *kvstate.Record {
	t.Helper()
	token, err := dedupe.Token(id)
	if err != nil {
		t.Fatal(err)
	}
	return r.recordAt(t, token, ok)
}

func (r *rig) recordAt(t testing.TB, key command.Token, ok func(*kvstate.Record) bool) *kvstate.Record {
	t.Helper()
	var e kvstate.Entry
	eventually(t, r.ctx, "the record at "+string(key), func() bool {
		e = r.entry(t, key)
		return e.Record != nil && ok(e.Record)
	})
	return e.Record
}

func parked(r *kvstate.Record) bool { return r.State == kvstate.Parked }

// emptied waits until nothing is left in any command stream.
func (r *rig) emptied(t testing.TB) {
	t.Helper()
	for _, s := range r.Shards() {
		eventually(t, r.ctx, "an empty command stream", func() bool {
			st, err := s.Commands.State(r.ctx)
			return err == nil && st.Messages == 0
		})
	}
}

// publish sends a command as any NATS client would, and returns its sequence.
func (r *rig) publish(t testing.TB, subject, payload string, header ...string) uint64 {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(payload)
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	ack, err := r.js.PublishMsg(r.ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	return ack.Sequence
}

// handle is a Mux with one handler.
func handle(kind string, h tallyman.HandlerFunc) *tallyman.Mux {
	return route(tallyman.Route{Kind: kind, Handler: h})
}

func route(routes ...tallyman.Route) *tallyman.Mux {
	mux := &tallyman.Mux{}
	for _, r := range routes {
		if err := mux.Route(r); err != nil {
			panic(err)
		}
	}
	return mux
}

// echo completes with the payload as its result.
func echo(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	return tallyman.Result{Body: c.Payload()}, nil
}

// silent is where the logs of workers go whose trouble is intended.
var silent = slog.New(slog.DiscardHandler)

// journal gathers events.
type journal struct {
	mu     sync.Mutex
	events []tallyman.Event
}

func (j *journal) observe(e tallyman.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, e)
}

// count returns how many events of a type there were for an id; "" means any.
func (j *journal) count(typ tallyman.EventType, id string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for _, e := range j.events {
		if e.Type == typ && (id == "" || e.ID == id) {
			n++
		}
	}
	return n
}

// transcript is a log that is read while it is written.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *transcript) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *transcript) has(part string) bool { return l.count(part) > 0 }

func (l *transcript) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// start runs a worker until stop is called, which returns once it has ended.
func start(t testing.TB, p *tallyman.Pool, cfg tallyman.WorkerConfig) (w *tallyman.Worker, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = silent
	}
	w, err := p.NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w, pooltest.Run(t, w.Run)
}

// writeFile puts text into a file of the test's own.
func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
