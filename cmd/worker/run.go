package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/oklog/run"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/metrics"
	"github.com/tallyman-go/tallyman/cmd/internal/probes"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/runner"
)

// Run starts everything and returns when everything has ended. The worker
// leads: whatever ends first, the worker drains, and only then do the HTTP
// server and the embedded server go.
func (f *Flags) Run(ctx context.Context, common *cli.Common, _ *cli.Out) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	log := common.Logger()
	config, err := f.load()
	if err != nil {
		return err
	}
	mux, err := config.Mux(runner.Options{Logger: log})
	if err != nil {
		return cli.Usage(err)
	}
	var web net.Listener
	if f.HTTP != "" {
		if web, err = new(net.ListenConfig).Listen(ctx, "tcp", f.HTTP); err != nil {
			return fmt.Errorf("--http: %w", err)
		}
		defer web.Close()
	}

	var server *embedded.Server
	if !common.Configured() {
		if server, err = f.startServer(log); err != nil {
			return err
		}
		defer server.Close() // again, if the group got to run
		common.Server = server.URL()
	}
	nc, pool, err := f.openPool(ctx, log, server != nil)
	if err != nil {
		return err
	}
	closePool := func() {
		if err := pool.Close(); err != nil {
			log.Warn("pool not closed in order", "error", err)
		}
		nc.Close()
	}
	m := metrics.New(mux.Pattern)
	w, err := pool.NewWorker(tallyman.WorkerConfig{
		Mux: mux, Queues: f.Queue, Concurrency: f.Concurrency, Drain: f.drainTime(), Logger: log, Observe: m.Observe,
	})
	if err != nil {
		closePool()
		return err
	}
	m.Gauge(w.InFlight)

	var g run.Group
	working, drain := context.WithCancel(context.WithoutCancel(ctx))
	defer drain()
	over := make(chan struct{})
	g.Add(func() error {
		defer close(over)
		defer closePool()
		return w.Run(working)
	}, func(error) { drain() })
	told := func(s os.Signal) {
		log.Info("draining; a second signal ends at once", "signal", s.String())
		drain()
	}
	g.Add(func() error { return cli.WatchSignals(signals, over, told, log) }, func(error) {})
	if web != nil {
		log.Info("serving /healthz, /readyz and /metrics", "http", web.Addr().String())
		g.Add(func() error { return probes.Serve(web, probes.New(w.Ready, m.Handler()), over) }, func(error) {})
	}
	if server != nil {
		g.Add(func() error { <-over; server.Close(); return nil }, func(error) {})
	}
	return g.Run()
}

// drainTime spells the flag as WorkerConfig does, where 0 means the default.
func (f *Flags) drainTime() time.Duration {
	if f.Drain == 0 {
		return -1
	}
	return f.Drain
}

// startServer starts the embedded server.
func (f *Flags) startServer(log *slog.Logger) (*embedded.Server, error) {
	data, listen := f.Data, f.Listen
	if data == "" {
		data = defaultData
	}
	if listen == "" {
		listen = defaultListen
	}
	s, err := embedded.Start(embedded.Config{Dir: data, Listen: listen, Logger: log})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w; work with that server by --server nats://%s, or choose another address with --listen", err, listen)
	case errors.Is(err, embedded.ErrDirInUse):
		return nil, fmt.Errorf("%w; connect to the worker that has it by --server, or choose another folder with --data", err)
	case err != nil:
		return nil, err
	}
	if f.Embedded {
		log.Info("embedded server started", "url", s.URL(), "data", s.Dir())
	} else {
		log.Warn("no server was named, an embedded one was started; name one with --server or NATS_URL", "url", s.URL(), "data", s.Dir())
	}
	return s, nil
}

// openPool connects and opens the pool. It creates the pool on an embedded
// server alone: elsewhere that is the operator's act.
func (f *Flags) openPool(ctx context.Context, log *slog.Logger, create bool) (*nats.Conn, *tallyman.Pool, error) {
	nc, err := f.Connect("tallyman worker")
	if err != nil {
		return nil, nil, err
	}
	report(nc, log)
	want := tallyman.Settings{Lease: f.Lease}
	if create {
		if err := tallyman.Create(ctx, nc, f.Pool, want, tallyman.Topology{Queues: f.Queue}); err != nil {
			nc.Close()
			return nil, nil, err
		}
	}
	pool, err := f.Open(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	if err := pool.Settings().Require(want); err != nil {
		_ = pool.Close() // the refusal is what matters
		nc.Close()
		return nil, nil, err
	}
	return nc, pool, nil
}

// report logs what becomes of the connection, denied subjects included. It
// must be called before the pool is opened, which listens too.
func report(nc *nats.Conn, log *slog.Logger) {
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		log.Warn("the server reports an error", "error", err)
	})
	nc.SetDisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil { // nil when we hang up ourselves
			log.Warn("disconnected, reconnecting", "error", err)
		}
	})
	nc.SetReconnectHandler(func(nc *nats.Conn) {
		log.Info("connected again", "url", nc.ConnectedUrlRedacted())
	})
}
