package facts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
	"go.uber.org/goleak"
)

// patience bounds every wait for something that is sure to come. It is no
// measure of anything: only a failing test waits for that long.
const patience = 2 * time.Minute

var (
	sharedServer  shared[*embedded.Server]
	sharedCluster shared[*embedded.Cluster]
)

func TestMain(m *testing.M) {
	code := m.Run()
	sharedServer.close()
	sharedCluster.close()
	if err := goleak.Find( // a server that is killed in the middle of a batch leaves goroutines of the batch's store behind
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// shared is started by the first test that asks for it.
type shared[S interface{ Close() }] struct {
	once sync.Once
	up   atomic.Bool
	s    S
	err  error
}

func (s *shared[S]) get(t testing.TB, start func() (S, error)) S {
	t.Helper()
	s.once.Do(func() {
		if s.s, s.err = start(); s.err == nil {
			s.up.Store(true)
		}
	})
	if s.err != nil {
		t.Fatalf("start: %v", s.err)
	}
	return s.s
}

func (s *shared[S]) close() {
	if s.up.Load() {
		s.s.Close()
	}
}

// fact is a test whose failures say what in the design rests on it, together
// with a connection to a server.
type fact struct {
	testing.TB
	decision string
	replicas int
	ctx      context.Context
	nc       *nats.Conn
	js       jetstream.JetStream
}

// onServer connects to the one server that tests share.
func onServer(t testing.TB, decision string) *fact {
	t.Helper()
	s := sharedServer.get(t, func() (*embedded.Server, error) { return embedded.Start(embedded.Config{}) })
	return connect(t, decision, s.URL())
}

// onOwnServer connects to a server that the test may kill and restart.
func onOwnServer(t testing.TB, decision string, cfg embedded.Config, opts ...nats.Option) (*fact, *embedded.Server) {
	t.Helper()
	s, err := embedded.Start(cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(s.Close)
	return connect(t, decision, s.URL(), opts...), s
}

// onCluster connects to the cluster that tests share; streams get three replicas.
func onCluster(t testing.TB, decision string) *fact {
	t.Helper()
	c := sharedCluster.get(t, func() (*embedded.Cluster, error) { return embedded.StartCluster(3, embedded.Config{}) })
	f := connect(t, decision, c.URL())
	f.replicas = 3
	return f
}

func connect(t testing.TB, decision, url string, opts ...nats.Option) *fact {
	t.Helper()
	f := &fact{TB: t, decision: decision, replicas: 1}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	f.ctx = ctx
	f.nc = f.dial(url, opts...)
	var err error
	if f.js, err = jetstream.New(f.nc); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fact) dial(url string, opts ...nats.Option) *nats.Conn {
	f.Helper()
	opts = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
	}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		f.Fatalf("connect: %v", err)
	}
	f.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		if !nc.IsClosed() {
			nc.Close()
			<-closed
		}
	})
	return nc
}

// Errorf adds to the message what would have to be decided anew.
func (f *fact) Errorf(format string, args ...any) {
	f.Helper()
	f.TB.Errorf(format+"\n\tdecision that rests on this: %s", append(args, f.decision)...)
}

// Fatalf is Errorf that ends the test.
func (f *fact) Fatalf(format string, args ...any) {
	f.Helper()
	f.TB.Fatalf(format+"\n\tdecision that rests on this: %s", append(args, f.decision)...)
}

// must ends the test if a step that only prepares it fails.
func (f *fact) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatalf("prepare: %v", err)
	}
}

// perAttempt bounds one attempt of many. What it sends may go to a server that was
// just killed, before the connection notices; nobody answers that.
const perAttempt = 5 * time.Second

// eventually asks until fn says yes. For as long as fn runs, f.ctx is that of one attempt.
func (f *fact) eventually(what string, fn func() bool) {
	f.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	all := f.ctx
	defer func() { f.ctx = all }()
	attempt := func() bool {
		ctx, cancel := context.WithTimeout(all, perAttempt)
		defer cancel()
		f.ctx = ctx
		return fn()
	}
	for !attempt() {
		select {
		case <-tick.C:
		case <-all.Done():
			f.Fatalf("never happened: %s", what)
		}
	}
}

// bounce kills a server and starts it again.
func (f *fact) bounce(s *embedded.Server) {
	f.Helper()
	before := f.nc.Stats().Reconnects
	s.Kill()
	f.must(s.Restart())
	f.reconnected(before)
}

// reconnected waits until the connection has noticed that its server was gone:
// what it sends to that one, nobody answers.
func (f *fact) reconnected(before uint64) {
	f.Helper()
	f.eventually("the connection is back", func() bool { return f.nc.Stats().Reconnects > before && f.nc.IsConnected() })
}

// prepare repeats a step that may be repeated for as long as nobody answers it:
// on a cluster that elects a leader a request may be lost.
func (f *fact) prepare(step func() error) {
	f.Helper()
	var err error
	f.eventually("an answer to a step that only prepares", func() bool {
		err = step()
		return !unanswered(err)
	})
	f.must(err)
}

func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders)
}

var names atomic.Int64

// name returns a stream name that no other test uses.
func name() string { return "s" + strconv.FormatInt(names.Add(1), 10) }

// commands creates a stream as the design has it, with the subjects <name>.>,
// after change, if not nil, had its way.
func (f *fact) commands(change func(*jetstream.StreamConfig)) jetstream.Stream {
	f.Helper()
	n := name()
	cfg := jetstream.StreamConfig{
		Name: n, Subjects: []string{n + ".>"}, Replicas: f.replicas,
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, DiscardNewPerSubject: true,
		Duplicates: 2 * time.Minute, AllowDirect: true,
	}
	if change != nil {
		change(&cfg)
	}
	return f.created(cfg)
}

func (f *fact) created(cfg jetstream.StreamConfig) (s jetstream.Stream) {
	f.Helper()
	f.prepare(func() (err error) { s, err = f.js.CreateStream(f.ctx, cfg); return err })
	return s
}

// durable creates the consumer "c" of s.
func (f *fact) durable(s jetstream.Stream, ackWait time.Duration, change func(*jetstream.ConsumerConfig)) jetstream.Consumer {
	f.Helper()
	cfg := jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		MaxDeliver: -1, MaxAckPending: -1,
	}
	if change != nil {
		change(&cfg)
	}
	var c jetstream.Consumer
	f.prepare(func() (err error) { c, err = s.CreateOrUpdateConsumer(f.ctx, cfg); return err })
	return c
}

// publish stores a message and returns what the server said. head holds pairs
// of header names and values.
func (f *fact) publish(subject string, head ...string) (*jetstream.PubAck, error) {
	f.Helper()
	return f.js.PublishMsg(f.ctx, message(subject, head...), jetstream.WithRetryAttempts(0))
}

func message(subject string, head ...string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte("payload")
	for i := 0; i < len(head); i += 2 {
		m.Header.Set(head[i], head[i+1])
	}
	return m
}

// stored publishes what must be accepted, and returns its sequence.
func (f *fact) stored(subject string, head ...string) uint64 {
	f.Helper()
	ack, err := f.publish(subject, head...)
	f.must(err)
	return ack.Sequence
}

// held returns how many messages s holds.
func (f *fact) held(s jetstream.Stream) uint64 {
	f.Helper()
	info, err := s.Info(f.ctx)
	f.must(err)
	return info.State.Msgs
}

// apiCode returns the error code of JetStream in err, or 0.
func apiCode(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	// Some errors carry theirs behind a method alone.
	var js jetstream.JetStreamError
	if errors.As(err, &js) && js.APIError() != nil {
		return js.APIError().ErrorCode
	}
	return 0
}

// pull is one raw pull request with an inbox of its own.
type pull struct {
	f   *fact
	sub *nats.Subscription
}

func nextSubject(stream, consumer string) string {
	return "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + consumer
}

// pull asks consumer "c" of s for up to batch messages within expires.
func (f *fact) pull(s jetstream.Stream, batch int, expires time.Duration) pull {
	f.Helper()
	return f.pullOver(f.nc, s, batch, expires)
}

func (f *fact) pullOver(nc *nats.Conn, s jetstream.Stream, batch int, expires time.Duration) pull {
	f.Helper()
	sub, err := nc.SubscribeSync(nc.NewInbox())
	f.must(err)
	req := fmt.Appendf(nil, `{"batch":%d,"expires":%d}`, batch, expires.Nanoseconds())
	f.must(nc.PublishRequest(nextSubject(s.CachedInfo().Config.Name, "c"), sub.Subject, req))
	return pull{f, sub}
}

// raw returns what comes next for the pull, message or status.
func (p pull) raw() *nats.Msg {
	p.f.Helper()
	m, err := p.sub.NextMsgWithContext(p.f.ctx)
	if err != nil {
		p.f.Fatalf("nothing came for a pull: %v", err)
	}
	return m
}

// message returns the next delivery and fails on a status.
func (p pull) message() delivery {
	p.f.Helper()
	m := p.raw()
	if status := m.Header.Get("Status"); status != "" {
		p.f.Fatalf("pull: got status %s %s, want a message", status, m.Header.Get("Description"))
	}
	meta, err := m.Metadata()
	p.f.must(err)
	return delivery{f: p.f, reply: m.Reply, seq: meta.Sequence.Stream, times: meta.NumDelivered}
}

// status returns the next status and fails on a message.
func (p pull) status() *nats.Msg {
	p.f.Helper()
	m := p.raw()
	if m.Header.Get("Status") == "" {
		p.f.Fatalf("pull: got message %s, want a status", m.Subject)
	}
	return m
}

// one pulls a single message and waits for it.
func (f *fact) one(s jetstream.Stream) delivery {
	f.Helper()
	return f.pull(s, 1, patience).message()
}

// delivery is one arrival of a message.
type delivery struct {
	f     *fact
	reply string
	seq   uint64
	times uint64
}

// say answers a delivery and does not wait.
func (d delivery) say(what string) {
	d.f.Helper()
	d.f.must(d.f.nc.Publish(d.reply, []byte(what)))
}

// ask answers a delivery and waits for the server's confirmation.
func (d delivery) ask(what string) *nats.Msg {
	d.f.Helper()
	m, err := d.f.nc.RequestWithContext(d.f.ctx, d.reply, []byte(what))
	if err != nil {
		d.f.Fatalf("%s with a reply subject: got %v, want a confirmation", what, err)
	}
	return m
}

func (d delivery) want(seq, times uint64) {
	d.f.Helper()
	if d.seq != seq || d.times != times {
		d.f.Errorf("delivery: got sequence %d for the %d. time, want %d for the %d.", d.seq, d.times, seq, times)
	}
}

// bucket creates a bucket with per-message TTLs. Markers that expired keys leave
// live for markers; 0 means that there are none.
func (f *fact) bucket(history uint8, markers time.Duration) (jetstream.KeyValue, string) {
	f.Helper()
	n := name()
	cfg := jetstream.KeyValueConfig{Bucket: n, History: history, Replicas: f.replicas, LimitMarkerTTL: markers}
	var kv jetstream.KeyValue
	f.prepare(func() (err error) { kv, err = f.js.CreateKeyValue(f.ctx, cfg); return err })
	if markers == 0 {
		// The client offers TTLs with markers alone.
		s, err := f.js.Stream(f.ctx, "KV_"+n)
		f.must(err)
		raw := s.CachedInfo().Config
		raw.AllowMsgTTL = true
		_, err = f.js.UpdateStream(f.ctx, raw)
		f.must(err)
	}
	return kv, n
}

// keySubject is where the value of a key lies.
func keySubject(bucket, key string) string { return "$KV." + bucket + "." + key }

const (
	headExpect = "Nats-Expected-Last-Subject-Sequence"
	headTTL    = "Nats-TTL"
	headRollup = "Nats-Rollup"
	headMsgID  = "Nats-Msg-Id"
)

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// gone waits until key has no value.
func (f *fact) gone(kv jetstream.KeyValue, key string) {
	f.Helper()
	f.eventually("key "+key+" expires", func() bool {
		_, err := kv.Get(f.ctx, key)
		return errors.Is(err, jetstream.ErrKeyNotFound)
	})
}

// writeFile writes a server configuration for the test alone.
func writeFile(t testing.TB, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server.conf")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
