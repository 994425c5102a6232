package pipeline_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// BenchmarkWrites compares single writes of small records with grouped ones,
// by as many writers at once, each of which waits for its answer; one operation
// is one write. TMPDIR names a directory on the disk to measure.
func BenchmarkWrites(b *testing.B) {
	for _, always := range []bool{true, false} {
		for _, writers := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("always=%v/writers=%d/each", always, writers), func(b *testing.B) {
				writeAll(b, always, writers, func(p *pipeline.Pipe) adder {
					return p.Publish
				})
			})
			for _, cfg := range groupConfigs() {
				b.Run(fmt.Sprintf("always=%v/writers=%d/group-%d-%d-%d", always, writers, cfg.Batches, cfg.Messages, cfg.Alone), func(b *testing.B) {
					writeAll(b, always, writers, func(p *pipeline.Pipe) adder { return pipeline.NewGroup(p, cfg).Add })
				})
			}
		}
	}
}

// groupConfigs are the default, and others that it was chosen from.
func groupConfigs() []pipeline.GroupConfig {
	return []pipeline.GroupConfig{
		{Batches: 1, Messages: 500, Alone: 16},
		{Batches: 2, Messages: 500, Alone: 16},
		{Batches: 1, Messages: 1000, Alone: 16},
		{Batches: 1, Messages: 500, Alone: 8},
		{Batches: 1, Messages: 500, Alone: 32},
	}
}

type adder func(m *nats.Msg, done func(pipeline.PubAck, error)) error

func writeAll(b *testing.B, always bool, writers int, open func(*pipeline.Pipe) adder) {
	b.Helper()
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir(), SyncAlways: always})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Close)
	nc, err := nats.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		nc.Close()
		<-closed
	})
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 2, AllowAtomicPublish: true,
	}); err != nil {
		b.Fatal(err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = pipe.Close() })
	add := open(pipe)
	var (
		left    atomic.Int64
		working sync.WaitGroup
		body    = make([]byte, 200)
	)
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	for range writers {
		working.Go(func() {
			answers := make(chan error, 1)
			for {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				m := &nats.Msg{Subject: "s." + strconv.FormatInt(n, 10), Data: body, Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}}}
				if err := add(m, func(_ pipeline.PubAck, err error) { answers <- err }); err != nil {
					b.Error(err)
					return
				}
				if err := <-answers; err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	working.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "writes/s")
}
