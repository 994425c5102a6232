package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/journal"
)

func TestMain(m *testing.M) { pooltest.Main(m) }

// patience bounds what must happen. It is no measure of anything.
const patience = 60 * time.Second

// silent is where logs go whose trouble is intended.
var silent = slog.New(slog.DiscardHandler)

// rig is a server with a pool and its journal, and raw access beside them.
type rig struct {
	*party
	server *embedded.Server
	raw    *nats.Conn
	js     jetstream.JetStream
	ctx    context.Context
}

// party is one participant, with a connection of its own.
type party struct {
	*journal.Journal
	pool *tallyman.Pool
	nc   *nats.Conn
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, tallyman.Settings{}, tallyman.Topology{}, journal.Config{})
}

// newMortalRig is newRig for tests that wait until the lease of a relay, or of a worker, has run out.
func newMortalRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, tallyman.Settings{Lease: 5 * time.Second}, tallyman.Topology{}, journal.Config{Lease: 5 * time.Second})
}

func newRigWith(t testing.TB, settings tallyman.Settings, topology tallyman.Topology, cfg journal.Config) *rig {
	t.Helper()
	s := pooltest.Server(t)
	ctx := pooltest.Context(t)
	r := &rig{server: s, raw: connect(t, s.URL()), ctx: ctx}
	r.js = pooltest.JetStream(t, r.raw)
	if err := tallyman.Create(ctx, r.raw, "main", pooltest.Settings(settings), topology); err != nil {
		t.Fatal(err)
	}
	cfg.Pool = "main"
	if err := journal.Create(ctx, r.raw, cfg); err != nil {
		t.Fatal(err)
	}
	r.party = r.join(t)
	return r
}

// join opens pool and journal on a connection of their own.
func (r *rig) join(t testing.TB, options ...nats.Option) *party {
	t.Helper()
	return joinAt(t, r.ctx, r.server.URL(), options...)
}

func joinAt(t testing.TB, ctx context.Context, url string, options ...nats.Option) *party {
	t.Helper()
	nc := connect(t, url, options...)
	pool, err := tallyman.Open(ctx, nc, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() }) // returns nil
	j, err := journal.Open(ctx, nc, pool, journal.Options{Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // returns nil
	return &party{j, pool, nc}
}

func connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	return pooltest.Connect(t, url, append([]nats.Option{nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)}, options...)...)
}

// commit writes a decision that is to be accepted.
func (r *rig) commit(t testing.TB, run string, expected uint64, d journal.Decision) journal.Committed {
	t.Helper()
	done, err := r.Commit(r.ctx, run, expected, d)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// relay runs a relay of p until stop is called, which returns once it has ended.
func relay[S any](t testing.TB, p *party, to journal.Submitter[S], cfg journal.RelayConfig) (r *journal.Relay, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = silent
	}
	r = journal.NewRelay(p.Journal, to, cfg)
	return r, pooltest.Run(t, r.Run)
}

// producer returns a producer of p.
func (p *party) producer(t testing.TB) *tallyman.Producer {
	t.Helper()
	to := p.pool.NewProducer(tallyman.ProducerConfig{})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := to.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return to
}

// ran counts how often a handler ran, by command id.
type ran struct {
	mu    sync.Mutex
	times map[string]int
}

func (r *ran) count(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.times[id]
}

// work runs a worker whose handler of kind "step" counts.
func (p *party) work(t testing.TB) *ran {
	t.Helper()
	counts := &ran{times: map[string]int{}}
	mux := &tallyman.Mux{}
	mux.Handle("step", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		counts.mu.Lock()
		defer counts.mu.Unlock()
		counts.times[c.ID()]++
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	w, err := p.pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Run(t, w.Run)
	return counts
}

// await polls until ok, and returns false if ctx ends before.
func (r *rig) await(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return false
		}
	}
	return true
}

// eventually is await that fails the test.
func (r *rig) eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !r.await(ok) {
		t.Fatalf("waited in vain for %s", what)
	}
}

// published waits until no decision is left for the relays.
func (r *rig) published(t testing.TB) {
	t.Helper()
	r.eventually(t, "a journal that is published", func() bool {
		s, err := r.Status(r.ctx)
		return err == nil && s.Unpublished == 0
	})
}

// history returns what replay shows, one line per event.
func (r *rig) history(t testing.TB, run string) []string {
	t.Helper()
	var lines []string
	n, err := r.Replay(r.ctx, run, func(ev journal.Recorded) error {
		lines = append(lines, fmt.Sprintf("%d.%d %s %s", ev.Seq, ev.N, ev.Kind, ev.Data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.History(r.ctx, run, func(e *journal.Entry) error {
		n--
		return nil
	}); err != nil || n != 0 {
		t.Fatalf("history and replay differ by %d decisions: %v", n, err)
	}
	return lines
}

// audit audits and fails the test if the journal does not balance.
func (r *rig) audit(t testing.TB) journal.Report {
	t.Helper()
	got, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Balanced {
		t.Errorf("%s: %+v", got.Summary(), got)
	}
	return got
}

// events makes a decision of events alone, from lines "kind data".
func events(lines ...string) journal.Decision {
	var d journal.Decision
	for _, l := range lines {
		kind, data, _ := strings.Cut(l, " ")
		d.Events = append(d.Events, journal.Event{Kind: kind, Data: []byte(data)})
	}
	return d
}

// step makes a command of kind "step".
func step(id, payload string) tallyman.Command {
	return tallyman.Command{ID: id, Kind: "step", Payload: []byte(payload)}
}

// cable is a connection's way to the server, with a knife beside it.
type cable struct {
	mu    sync.Mutex
	cut   func(written []byte) (forward, cut bool) // nil: nothing is cut
	down  bool                                     // no new connection either
	conns map[net.Conn]bool
}

// Dial is nats.CustomDialer.
func (c *cable) Dial(network, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return nil, fmt.Errorf("the cable is cut")
	}
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	if c.conns == nil {
		c.conns = map[net.Conn]bool{}
	}
	c.conns[conn] = true
	return &strand{conn, c}, nil
}

// on arms the knife for the next write that contains text: forward says
// whether the server still gets it, and down whether the cable stays cut.
func (c *cable) on(text string, forward, down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = func(b []byte) (bool, bool) {
		if !bytes.Contains(b, []byte(text)) {
			return true, false
		}
		c.cut, c.down = nil, down
		return forward, true
	}
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}

type strand struct {
	net.Conn
	c *cable
}

func (s *strand) Write(b []byte) (int, error) {
	s.c.mu.Lock()
	forward, cut := true, false
	if s.c.cut != nil {
		forward, cut = s.c.cut(b)
	}
	s.c.mu.Unlock()
	if !cut {
		return s.Conn.Write(b)
	}
	if forward {
		if _, err := s.Conn.Write(b); err != nil {
			return 0, err
		}
		// What the server answers must not arrive: nobody reads any more, but the
		// server must have taken it before the connection breaks.
		if tcp, ok := s.Conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}
	_ = s.Conn.Close()
	return 0, net.ErrClosed
}
