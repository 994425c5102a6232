package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
)

// The assets that raw and tallyman create under the same names, so that the
// same books are read for both.
const (
	poolName      = "bench"
	commandStream = "bench_commands"
	receiptStream = "KV_bench"
	queueName     = "default"
	kindName      = "noop"
)

// jetStream is a standalone nats-server inside the server's process, with file
// storage and the default sync interval.
type jetStream struct{}

func (jetStream) name() string    { return "nats-server" }
func (jetStream) missing() string { return "" } // it is part of the program

func (jetStream) start(_ context.Context, dir string) (*runningServer, error) {
	return startNATS(&server.Options{ServerName: "bench", StoreDir: dir}, 1)
}

// startNATS runs a server with JetStream on a free port, whose assets will have
// so many replicas.
func startNATS(o *server.Options, replicas int) (*runningServer, error) {
	o.Host, o.Port, o.JetStream, o.NoSigs = "127.0.0.1", server.RANDOM_PORT, true, true
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("create server: %w", err)
	}
	s.SetLoggerV2(stderrLogger{}, false, false, false)
	s.Start()
	stop := func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(startTimeout) {
		stop()
		return nil, fmt.Errorf("the server was not ready within %v", startTimeout)
	}
	return &runningServer{
		url: s.ClientURL(), version: server.VERSION, durability: durability(s.JetStreamConfig(), replicas), cpu: cpuTime, stop: stop,
	}, nil
}

// durability says in words what an acknowledged message survives.
func durability(c *server.JetStreamConfig, replicas int) string {
	switch {
	case c.SyncAlways:
		return fmt.Sprintf("file storage, R%d, fsync before every ack: survives a power cut", replicas)
	case replicas > 1:
		return fmt.Sprintf("file storage, R%d on one machine, fsync every %v: survives the loss of a server, not a power cut of all", replicas, c.SyncInterval)
	}
	return fmt.Sprintf("file storage, R%d, fsync every %v: survives a killed process, not a power cut", replicas, c.SyncInterval)
}

// stderrLogger shows what a server complains of and drops the rest.
type stderrLogger struct{}

func (stderrLogger) Noticef(string, ...any) {}
func (stderrLogger) Debugf(string, ...any)  {}
func (stderrLogger) Tracef(string, ...any)  {}
func (stderrLogger) Warnf(f string, a ...any) {
	fmt.Fprintf(os.Stderr, "server: "+f+"\n", a...)
}
func (l stderrLogger) Errorf(f string, a ...any) { l.Warnf(f, a...) }
func (l stderrLogger) Fatalf(f string, a ...any) { l.Warnf(f, a...) }

// natsContestant is a contestant with the command stream and the bucket named
// above. Each call has a connection of its own.
type natsContestant interface {
	Name() string
	Create(ctx context.Context, nc *nats.Conn, l layout) error
	Produce(ctx context.Context, nc *nats.Conn, commands iter.Seq[Command]) error
	Work(ctx context.Context, nc *nats.Conn) error
}

// layout is what the assets of a natsContestant are to be like. Zero fields mean
// one replica, Tallyman's default lease, and no queue but the default one.
type layout struct {
	replicas int
	lease    time.Duration
	queues   []string // beside the default one
}

// onJetStream connects a natsContestant and reads its books.
type onJetStream struct {
	natsContestant
	layout layout
}

func (c onJetStream) System() system {
	if c.layout.replicas > 1 {
		return cluster{}
	}
	return jetStream{}
}

func (onJetStream) Share() int { return 1 }

func (c onJetStream) Create(ctx context.Context, url string) error {
	l := c.layout
	l.replicas, l.lease = max(l.replicas, 1), cmp.Or(l.lease, tallyman.DefaultLease)
	return connected(url, func(nc *nats.Conn) error { return c.natsContestant.Create(ctx, nc, l) })
}

func (c onJetStream) Produce(ctx context.Context, url string, commands iter.Seq[Command]) error {
	return connected(url, func(nc *nats.Conn) error { return c.natsContestant.Produce(ctx, nc, commands) })
}

func (c onJetStream) Work(ctx context.Context, url string) error {
	return connected(url, func(nc *nats.Conn) error { return c.natsContestant.Work(ctx, nc) })
}

func (onJetStream) Watch(ctx context.Context, url string) (books, error) {
	b, err := watchStreams(ctx, url, commandStream, receiptStream)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// connected calls f with a connection that ends with it.
func connected(url string, f func(*nats.Conn) error, opts ...nats.Option) error {
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", url, err)
	}
	defer nc.Close()
	return f(nc)
}

// streamBooks are the books of a work queue beside a stream with one entry per
// command: both are watched from outside.
type streamBooks struct {
	nc       *nats.Conn
	commands jetstream.Stream
	entries  jetstream.Stream
	before   uint64 // entries before the first command
}

func watchStreams(ctx context.Context, url, commands, entries string) (_ *streamBooks, err error) {
	nc, err := nats.Connect(url, nats.Name("bench"))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	b := &streamBooks{nc: nc}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	if b.commands, err = js.Stream(ctx, commands); err != nil {
		return nil, fmt.Errorf("look up %s: %w", commands, err)
	}
	if b.entries, err = js.Stream(ctx, entries); err != nil {
		return nil, fmt.Errorf("look up %s: %w", entries, err)
	}
	b.before = b.entries.CachedInfo().State.NumSubjects
	return b, nil
}

func (b *streamBooks) Close() { b.nc.Close() }

// Time has nothing to prepare: JetStream keeps the time of every entry.
func (*streamBooks) Time(context.Context) error { return nil }

// Settled is true when n commands came and went. No ack without a receipt: as
// many entries must be there then.
func (b *streamBooks) Settled(ctx context.Context, n int) (time.Time, bool, error) {
	commands, err := b.commands.Info(ctx)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read state of the commands: %w", err)
	}
	if commands.State.LastSeq < uint64(n) || commands.State.Msgs > 0 {
		return time.Time{}, false, nil
	}
	entries, err := b.entries.Info(ctx)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read state of the receipts: %w", err)
	}
	if got := entries.State.NumSubjects - b.before; got < uint64(n) {
		return time.Time{}, false, fmt.Errorf("%d commands are gone from the stream, but only %d receipts are there", n, got)
	}
	return time.Now(), true, nil
}

// Completions reads when each receipt was stored, by the server's clock.
func (b *streamBooks) Completions(ctx context.Context) (map[string]time.Time, error) {
	at := make(map[string]time.Time)
	err := b.each(ctx, true, func(entry jetstream.Msg, stored time.Time) error {
		// Keys that begin with _ belong to the pool.
		if key := strings.TrimPrefix(entry.Subject(), "$KV."+poolName+"."); !strings.HasPrefix(key, "_") {
			at[key] = stored
		}
		return nil
	})
	return at, err
}

// each hands on every entry, with or without its body, and when it was stored.
func (b *streamBooks) each(ctx context.Context, headersOnly bool, f func(jetstream.Msg, time.Time) error) error {
	info, err := b.entries.Info(ctx)
	if err != nil {
		return fmt.Errorf("read state of the receipts: %w", err)
	}
	if info.State.Msgs == 0 {
		return errors.New("there are no receipts")
	}
	consumer, err := b.entries.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: headersOnly})
	if err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	entries, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	defer entries.Stop()
	for {
		entry, err := entries.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read receipts: %w", err)
		}
		meta, err := entry.Metadata()
		if err != nil {
			return fmt.Errorf("read receipts: %w", err)
		}
		if err := f(entry, meta.Timestamp); err != nil {
			return err
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			return nil
		}
	}
}
