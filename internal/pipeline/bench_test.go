package pipeline

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// BenchmarkParsePubAck reads what the server answers to nearly every message.
func BenchmarkParsePubAck(b *testing.B) {
	answer := []byte(`{"stream":"main_commands","seq":123456}`)
	b.ReportAllocs()
	for b.Loop() {
		if ack, err := ParsePubAck(answer); err != nil || ack.Sequence != 123456 {
			b.Fatalf("got %+v, %v; want sequence 123456", ack, err)
		}
	}
}

// BenchmarkSlot takes a place for a request, addresses it and gives it back.
func BenchmarkSlot(b *testing.B) {
	p := &Pipe{prefix: "_INBOX.0123456789ABCDEFGHIJKL.", timeout: 600}
	on := func(*nats.Msg, error) {}
	b.ReportAllocs()
	for b.Loop() {
		i, gen, err := p.take(slot{one: on})
		if err != nil || p.address(i, gen) == "" {
			b.Fatalf("slot %d, %v; want an address", i, err)
		}
		p.mu.Lock()
		_, mine := p.releaseLocked(i, gen)
		p.mu.Unlock()
		if !mine {
			b.Fatal("a slot in use was not given back")
		}
	}
}
