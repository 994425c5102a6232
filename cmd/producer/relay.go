package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/oklog/run"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/database"
	"github.com/tallyman-go/tallyman/cmd/internal/metrics"
	"github.com/tallyman-go/tallyman/cmd/internal/probes"
	"github.com/tallyman-go/tallyman/outbox"
	"github.com/tallyman-go/tallyman/outbox/pgxtx"
)

// Relay is the command that carries the rows of an outbox to the pool.
type Relay struct {
	DB        string        `name:"db" required:"" help:"Database with the outbox: postgres://..., sqlite:PATH or file:PATH." env:"TALLYMAN_DB" placeholder:"DSN"`
	Migrate   bool          `help:"Create the tables, or bring them up to date, before all else."`
	Batch     int           `help:"Rows to claim at once." default:"500" placeholder:"N"`
	Lease     time.Duration `help:"How long a claimed row is this relay's alone." default:"30s" placeholder:"D"`
	Poll      time.Duration `help:"How often to look without being woken (default 1s, SQLite 100ms)." placeholder:"D"`
	Attempts  int           `help:"Tries of a row that keeps failing by itself." default:"12" placeholder:"N"`
	Retention time.Duration `help:"How long rows stay after their receipt was seen." default:"168h" placeholder:"D"`
	HTTP      string        `name:"http" help:"Address on which to serve /healthz, /readyz and /metrics." placeholder:"ADDR"`
}

// Validate checks what the parser cannot.
func (r *Relay) Validate() error {
	switch {
	case r.Batch < 1 || r.Batch > 10_000:
		return fmt.Errorf("--batch %d: give 1 to 10000", r.Batch)
	case r.Lease < time.Second:
		return fmt.Errorf("--lease %v: give at least 1s", r.Lease)
	case r.Poll < 0:
		return fmt.Errorf("--poll %v: must not be negative", r.Poll)
	case r.Attempts < 1:
		return fmt.Errorf("--attempts %d: give at least 1", r.Attempts)
	case r.Retention <= 0:
		return fmt.Errorf("--retention %v: must be positive", r.Retention)
	}
	return nil
}

// Run relays until a signal comes. The relay leads: whatever ends first, it
// finishes what is under way, and only then does the HTTP server go.
func (r *Relay) Run(ctx context.Context, common *cli.Common, _ *cli.Out) error {
	log := common.Logger()
	db, err := database.Open(ctx, r.DB, r.Migrate)
	if err != nil {
		return err
	}
	defer db.Close()
	if r.Migrate {
		if err := outbox.Migrate(ctx, db.DB, db.Dialect); err != nil {
			return err
		}
	}
	if err := outbox.CheckSchema(ctx, db.DB, db.Dialect); err != nil {
		return err
	}
	var web net.Listener
	if r.HTTP != "" {
		if web, err = new(net.ListenConfig).Listen(ctx, "tcp", r.HTTP); err != nil {
			return fmt.Errorf("--http: %w", err)
		}
		defer web.Close()
	}
	nc, pool, err := common.OpenPool(ctx, "tallyman relay")
	if err != nil {
		return err
	}
	defer nc.Close()
	defer pool.Close()
	producer := pool.NewProducer(tallyman.ProducerConfig{Window: max(tallyman.DefaultWindow, 2*r.Batch)})
	relay, err := outbox.NewRelay(outbox.Config{
		DB: db.DB, Dialect: db.Dialect, Submitter: outbox.Via(producer), States: pool,
		Lease: r.Lease, Batch: r.Batch, Poll: r.Poll, Attempts: r.Attempts, Retention: r.Retention, Logger: log,
	})
	if err != nil {
		return err
	}

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	var g run.Group
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	over := make(chan struct{})
	g.Add(func() error {
		defer close(over)
		log.Info("relaying", "database", db.Dialect.String(), "pool", pool.Name())
		err := relay.Run(working)
		return errors.Join(err, closeProducer(producer))
	}, func(error) { stop() })
	told := func(s os.Signal) {
		log.Info("stopping; a second signal ends at once", "signal", s.String())
		stop()
	}
	g.Add(func() error { return cli.WatchSignals(signals, over, told, log) }, func(error) {})
	if db.Dialect == outbox.Postgres {
		g.Add(func() error { return pgxtx.Listen(working, db.DSN, relay.Wake, log) }, func(error) { stop() })
	}
	if web != nil {
		ready := func(ctx context.Context) error {
			if !nc.IsConnected() {
				return errors.New("not connected to the pool's server")
			}
			return outbox.CheckSchema(ctx, db.DB, db.Dialect)
		}
		log.Info("serving /healthz, /readyz and /metrics", "http", web.Addr().String())
		g.Add(func() error { return probes.Serve(web, probes.New(ready, metrics.Relay(relay.Stats)), over) }, func(error) {})
	}
	return g.Run()
}

// closeProducer ends the producer, with which nothing is under way any more.
func closeProducer(p *tallyman.Producer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return p.Close(ctx)
}
