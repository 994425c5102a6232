package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// pollInterval is how often the harness looks whether the books balance. It
// bounds the error of a scenario's end.
const pollInterval = 2 * time.Millisecond

// field is a fresh server with the assets of one contestant. Whatever happens
// on it is watched from outside, by reading the two streams.
type field struct {
	contestant Contestant
	profiles   func(role string) string
	server     *process
	dir        string
	nc         *nats.Conn
	commands   jetstream.Stream
	bucket     jetstream.Stream
	before     uint64 // keys in the bucket before the first command
}

// openField starts a server and lets the contestant create its assets there.
func openField(ctx context.Context, c Contestant, profiles func(role string) string) (_ *field, err error) {
	f := &field{contestant: c, profiles: profiles}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.dir, err = os.MkdirTemp("", "tallyman-bench-"); err != nil {
		return nil, err
	}
	if f.server, err = startProcess(ctx, order{Role: "server", Dir: f.dir, Profile: f.profiles("server")}); err != nil {
		return nil, err
	}
	if f.nc, err = nats.Connect(f.server.ready.URL, nats.Name("bench")); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", f.server.ready.URL, err)
	}
	if err := c.Create(ctx, f.nc); err != nil {
		return nil, fmt.Errorf("%s: create: %w", c.Name(), err)
	}
	js, err := jetstream.New(f.nc)
	if err != nil {
		return nil, err
	}
	if f.commands, err = js.Stream(ctx, commandStream); err != nil {
		return nil, fmt.Errorf("%s: look up %s: %w", c.Name(), commandStream, err)
	}
	if f.bucket, err = js.Stream(ctx, receiptStream); err != nil {
		return nil, fmt.Errorf("%s: look up %s: %w", c.Name(), receiptStream, err)
	}
	f.before = f.bucket.CachedInfo().State.NumSubjects
	return f, nil
}

func (f *field) close() {
	if f.nc != nil {
		f.nc.Close()
	}
	if f.server != nil {
		f.server.close()
	}
	if f.dir != "" {
		os.RemoveAll(f.dir)
	}
}

// start starts a producer or a worker of the contestant.
func (f *field) start(ctx context.Context, role string, n, rate int) (*process, error) {
	return startProcess(ctx, order{
		Role: role, URL: f.server.ready.URL, Contestant: f.contestant.Name(), N: n, Rate: rate, Profile: f.profiles(role),
	})
}

// settled waits until n commands came and went and as many receipts lie in the
// bucket, and returns when it saw that. It fails when the worker does.
func (f *field) settled(ctx context.Context, n int, worker *process) (time.Time, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait for %d receipts: %w", n, context.Cause(ctx))
		case r, ok := <-worker.reports:
			return time.Time{}, errors.Join(worker.check(r, ok), errors.New("the worker spoke before it was asked"))
		case <-tick.C:
		}
		commands, err := f.commands.Info(ctx)
		if err != nil {
			return time.Time{}, fmt.Errorf("read state of %s: %w", commandStream, err)
		}
		if commands.State.LastSeq < uint64(n) || commands.State.Msgs > 0 {
			continue
		}
		// No ack without a receipt: now that all commands are gone, all receipts
		// must be there.
		bucket, err := f.bucket.Info(ctx)
		if err != nil {
			return time.Time{}, fmt.Errorf("read state of %s: %w", receiptStream, err)
		}
		if got := bucket.State.NumSubjects - f.before; got < uint64(n) {
			return time.Time{}, fmt.Errorf("%d commands are gone from the stream, but only %d receipts are there", n, got)
		}
		return time.Now(), nil
	}
}

// receipts reads when each receipt was stored, by the server's clock, and
// fails unless there are exactly n.
func (f *field) receipts(ctx context.Context, n int) (map[string]time.Time, error) {
	info, err := f.bucket.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read state of %s: %w", receiptStream, err)
	}
	consumer, err := f.bucket.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	entries, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	defer entries.Stop()
	at := make(map[string]time.Time, n)
	for {
		entry, err := entries.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read receipts: %w", err)
		}
		meta, err := entry.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read receipts: %w", err)
		}
		// Keys that begin with _ belong to the pool.
		if key := strings.TrimPrefix(entry.Subject(), "$KV."+poolName+"."); !strings.HasPrefix(key, "_") {
			at[key] = meta.Timestamp
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			break
		}
	}
	if len(at) != n {
		return nil, fmt.Errorf("%s: %d commands made %d receipts", f.contestant.Name(), n, len(at))
	}
	return at, nil
}
