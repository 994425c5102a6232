package main

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
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
// storage and the default sync interval, or none: a flush before every answer.
type jetStream struct{ sync bool }

// syncedNATS is how the report calls a server that flushes before it answers.
const syncedNATS = "nats-server (sync_interval: always)"

func (j jetStream) name() string {
	if j.sync {
		return syncedNATS
	}
	return "nats-server"
}
func (jetStream) missing() string { return "" } // it is part of the program

func (j jetStream) start(_ context.Context, dir string) (*runningServer, error) {
	return startNATS(&server.Options{ServerName: "bench", StoreDir: dir, SyncAlways: j.sync}, 1)
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
		url: s.ClientURL(), version: server.VERSION, durability: durability(s.JetStreamConfig(), replicas),
		cpu: cpuTime, traffic: func() (traffic, error) { return stored(o.Cluster.Port, o.Routes) }, stop: stop,
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
// one replica, Tallyman's default lease, no queue but the default one, and a
// server that flushes every 2 minutes. What follows pool is of Tallyman alone.
type layout struct {
	replicas int
	lease    time.Duration
	queues   []string // beside the default one
	sync     bool     // the server flushes to disk before every answer
	pool     tallyman.Settings
}

// onJetStream connects a natsContestant and reads its books.
type onJetStream struct {
	natsContestant
	layout layout
}

func (c onJetStream) System() system {
	if c.layout.replicas > 1 {
		return cluster{sync: c.layout.sync}
	}
	return jetStream{sync: c.layout.sync}
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

func (c onJetStream) Watch(ctx context.Context, url string) (books, error) {
	shards := 1
	if c.Name() == tallymanName {
		shards = max(c.layout.pool.Shards, 1)
	}
	b, err := watchStreams(ctx, url, shardNames(shards))
	if err != nil {
		return nil, err
	}
	return b, nil
}

// connected calls f with a connection that ends with it.
func connected(url string, f func(*nats.Conn) error, opts ...nats.Option) error {
	nc, err := nats.Connect(url, append(opts, nats.SetCustomDialer(countingDialer{}))...)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", url, err)
	}
	defer nc.Close()
	return f(nc)
}
