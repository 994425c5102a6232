package tallyman

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// doubled is the command stream of a double with fetchers of the seam's type.
type doubled struct{ *memory.Commands }

func (d doubled) NewFetcher(cfg stream.FetchConfig) fetcher { return d.Commands.NewFetcher(cfg) }

// onDouble is the pool as the process behind a handle of the double has it open.
func onDouble(h *memory.Handle, settings Settings) *Pool {
	return &Pool{name: "main", link: h, shards: []*shard{{name: "main", records: h.Records(), commands: doubled{h.Commands()}}}, settings: settings}
}

// seam is a pool, whatever lies behind it, and the hand of an operator.
type seam struct {
	*Pool
	hand byHand
	ctx  context.Context
	wipe func(key command.Token, purge bool) error                           // puts a marker over a key
	send func(kind string, token command.Token, msgID, payload string) error // publishes as any client can
}

// byHand is what only the desk asks of the stream and the bucket.
type byHand struct {
	commands interface {
		Republish(env command.Envelope, done func(stream.Accepted, error)) error
		Occupant(ctx context.Context, env command.Envelope) (stream.Stored, error)
		Remove(ctx context.Context, seq uint64) error
	}
	records interface {
		Scan(ctx context.Context, visit func(kvstate.Entry) error) error
		LastRevision(ctx context.Context) (uint64, error)
		Remove(ctx context.Context, key command.Token, revision uint64) error
	}
}

// seamSettings leave a stalled machine more than a second before the order of events changes.
var seamSettings = Settings{Lease: 3 * time.Second, Retention: 2 * time.Second}.WithDefaults()

// TestSeam holds the double, a server and a cluster to the same behaviours.
func TestSeam(t *testing.T) {
	t.Parallel()
	t.Run("on the double", func(t *testing.T) {
		t.Parallel()
		for name, behaves := range behaviours() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := memory.NewServer(memory.Config{Lease: seamSettings.Lease, Retention: seamSettings.Retention})
					h := s.Connect("worker", nil)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					behaves(t, &seam{
						Pool: onDouble(h, seamSettings), hand: byHand{h.Commands(), h.Records()}, ctx: ctx,
						wipe: func(key command.Token, purge bool) error { s.Delete(key, purge); return nil },
						send: func(kind string, token command.Token, msgID, payload string) error {
							header := nats.Header{}
							if msgID != "" {
								header.Set(command.HeaderMsgID, msgID)
							}
							answers := make(chan error, 1)
							done := func(_ stream.Accepted, err error) { answers <- err }
							if err := h.Commands().Send(command.DefaultQueue, kind, token, header, []byte(payload), done); err != nil {
								return err
							}
							return <-answers
						},
					})
				})
			})
		}
	})
	t.Run("on a server", func(t *testing.T) {
		t.Parallel()
		server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		behave(t, server.URL(), seamSettings, 1)
	})
	t.Run("on a server, in groups", func(t *testing.T) {
		t.Parallel()
		server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		settings := seamSettings
		settings.Commit = CommitGroup
		behave(t, server.URL(), settings, 1)
	})
	t.Run("on a cluster", func(t *testing.T) {
		t.Parallel()
		cluster, err := embedded.StartCluster(3, embedded.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		behave(t, cluster.URL(), seamSettings, 3)
	})
}

// behave runs every behaviour on a pool of its own.
func behave(t *testing.T, url string, settings Settings, replicas int) {
	t.Helper()
	i := 0
	for name, behaves := range behaviours() {
		i++
		pool := "pool-" + strconv.Itoa(i)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			t.Cleanup(cancel)
			nc, err := Connect(url)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			err = Create(ctx, nc, pool, settings, Topology{Replicas: replicas})
			for errors.Is(err, ErrUnavailable) && pipeline.Sleep(ctx, 100*time.Millisecond) == nil { // a busy cluster may elect a leader at any time
				err = Create(ctx, nc, pool, settings, Topology{Replicas: replicas})
			}
			if err != nil {
				t.Fatal(err)
			}
			p, err := Open(ctx, nc, pool)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })       // returns nil
			kv, err := js.KeyValue(t.Context(), pool) // which gives up by itself
			if err != nil {
				t.Fatal(err)
			}
			behaves(t, &seam{
				Pool: p, hand: byHand{p.Commands(), p.Records()}, ctx: ctx,
				wipe: func(key command.Token, purge bool) error {
					if purge {
						return kv.Purge(ctx, string(key))
					}
					return kv.Delete(ctx, string(key))
				},
				send: func(kind string, token command.Token, msgID, payload string) error {
					m := nats.NewMsg(stream.Subject(pool, command.DefaultQueue, kind, token))
					m.Data = []byte(payload)
					if msgID != "" {
						m.Header.Set(command.HeaderMsgID, msgID)
					}
					_, err := js.PublishMsg(ctx, m)
					return err
				},
			})
		})
	}
}

// claimed is a first record for an id.
func claimed(t *testing.T, id string) *kvstate.Record {
	t.Helper()
	r, err := (&kvstate.Record{ID: id, Kind: "k", Queue: command.DefaultQueue}).Advance(kvstate.Claimed, "w", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// write writes a record over a revision and returns the new one.
func (s *seam) write(t *testing.T, r *kvstate.Record, over uint64) uint64 {
	t.Helper()
	revision, err := s.tryWrite(r, over)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func (s *seam) tryWrite(r *kvstate.Record, over uint64) (uint64, error) {
	next := *r
	next.Revision = over
	return s.shards[0].records.WriteWait(s.ctx, command.Token(r.ID), &next)
}

func (s *seam) read(t *testing.T, key command.Token) kvstate.Entry {
	t.Helper()
	e, err := s.shards[0].records.Read(s.ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// readMany reads a batch, again until the replica that answers has caught up
// with the leader: it may lag.
func (s *seam) readMany(t *testing.T, keys ...command.Token) []kvstate.Entry {
	t.Helper()
	for {
		entries, level := s.readOnce(t, keys), true
		for i, e := range entries {
			level = level && e.Revision == s.read(t, keys[i]).Revision
		}
		if level || pipeline.Sleep(s.ctx, 20*time.Millisecond) != nil {
			return entries
		}
	}
}

func (s *seam) readOnce(t *testing.T, keys []command.Token) []kvstate.Entry {
	t.Helper()
	type answer struct {
		entries []kvstate.Entry
		err     error
	}
	answers := make(chan answer, 1)
	if err := s.shards[0].records.ReadMany(keys, func(entries []kvstate.Entry, err error) { answers <- answer{entries, err} }); err != nil {
		t.Fatal(err)
	}
	a := <-answers
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.entries
}

func (s *seam) put(t *testing.T, key command.Token, value string, expire bool) uint64 {
	t.Helper()
	type answer struct {
		revision uint64
		err      error
	}
	answers := make(chan answer, 1)
	if err := s.shards[0].records.Put(key, []byte(value), expire, func(revision uint64, err error) { answers <- answer{revision, err} }); err != nil {
		t.Fatal(err)
	}
	a := <-answers
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.revision
}

// until polls for an entry that satisfies ok.
func (s *seam) until(t *testing.T, key command.Token, what string, ok func(kvstate.Entry) bool) {
	t.Helper()
	for !ok(s.read(t, key)) {
		if pipeline.Sleep(s.ctx, 20*time.Millisecond) != nil {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (s *seam) publish(t *testing.T, id string) stream.Accepted {
	t.Helper()
	ok, err := s.tryPublish(id)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// envelope is the command that publish publishes.
func envelope(id string) (command.Envelope, error) {
	return dedupe.Identify(Command{ID: id, Kind: "k", Queue: command.DefaultQueue, Payload: []byte("payload of " + id)})
}

func (s *seam) tryPublish(id string) (stream.Accepted, error) {
	env, err := envelope(id)
	if err != nil {
		return stream.Accepted{}, err
	}
	return accepted(s.shards[0].commands.Publish, env)
}

// accepted publishes and waits for the outcome.
func accepted(publish func(command.Envelope, func(stream.Accepted, error)) error, env command.Envelope) (stream.Accepted, error) {
	type answer struct {
		ok  stream.Accepted
		err error
	}
	answers := make(chan answer, 1)
	if err := publish(env, func(ok stream.Accepted, err error) { answers <- answer{ok, err} }); err != nil {
		return stream.Accepted{}, err
	}
	a := <-answers
	return a.ok, a.err
}

// fetch fetches until the test ends, and hands deliveries out one by one.
func (s *seam) fetch(t *testing.T) <-chan *stream.Delivery {
	t.Helper()
	deliveries := make(chan *stream.Delivery, 100)
	f := s.shards[0].commands.NewFetcher(stream.FetchConfig{
		Queue: command.DefaultQueue, Expires: time.Second,
		Want: func() (int, bool) { return 10, false },
		Wake: make(chan struct{}),
		Deliver: func(batch []*stream.Delivery) {
			for _, d := range batch {
				deliveries <- d
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("fetcher: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return deliveries
}

// next waits for the next delivery, which is to be the given one of an id.
func (s *seam) next(t *testing.T, from <-chan *stream.Delivery, id string, attempts uint64) *stream.Delivery {
	t.Helper()
	select {
	case d := <-from:
		if got, want := fmt.Sprint(d.Token, " ", d.Attempts), fmt.Sprint(id, " ", attempts); got != want {
			t.Fatalf("got delivery %s, want %s", got, want)
		}
		return d
	case <-s.ctx.Done():
		t.Fatalf("waited in vain for delivery %d of %s", attempts, id)
		return nil
	}
}

func (s *seam) gone(t *testing.T, seq uint64) {
	t.Helper()
	for {
		if _, err := s.shards[0].commands.Get(s.ctx, seq); isOneOf(err, stream.ErrNotFound) {
			return
		}
		if pipeline.Sleep(s.ctx, 5*time.Millisecond) != nil {
			t.Fatalf("sequence %d is still in the stream", seq)
		}
	}
}
