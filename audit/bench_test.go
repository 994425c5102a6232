package audit_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// BenchmarkRun audits a pool of 200,000 receipts with 100 bytes of result each.
func BenchmarkRun(b *testing.B) {
	const n, window = 200_000, 1000
	server, err := embedded.Start(embedded.Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	if err := tallyman.Create(b.Context(), nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		b.Fatal(err)
	}
	p, err := tallyman.Open(b.Context(), nc, "main")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	// As if all of them had come and gone.
	str, err := js.Stream(b.Context(), stream.Name("main"))
	if err != nil {
		b.Fatal(err)
	}
	if err := str.Purge(b.Context(), jetstream.WithPurgeSequence(n+1)); err != nil {
		b.Fatal(err)
	}
	at := time.Now()
	var written sync.WaitGroup
	turns := make(chan struct{}, window)
	for i := 1; i <= n; i++ {
		id := fmt.Sprintf("c-%d", i)
		r := &kvstate.Record{
			ID: id, Kind: "echo", Queue: "default", State: kvstate.Completed, Owner: "host-abcdef", Attempt: 1, Seqs: []uint64{uint64(i)},
			Digest: "0123456789abcdef0123456789abcdef", Result: make([]byte, 100),
			Trail: []kvstate.Step{{At: at, State: kvstate.Completed, Owner: "host-abcdef"}},
		}
		turns <- struct{}{}
		written.Add(1)
		if err := p.Records().Write(command.Token(id), r, func(_ uint64, err error) {
			if err != nil {
				b.Error(err)
			}
			<-turns
			written.Done()
		}); err != nil {
			b.Fatal(err)
		}
	}
	written.Wait()
	b.ReportAllocs()
	for b.Loop() {
		r, err := audit.Run(b.Context(), p.Commands(), p.Records(), audit.Options{})
		if err != nil || !r.Balanced || r.Completed != n || r.LastSeq != n {
			b.Fatalf("got %+v, %v", r, err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
