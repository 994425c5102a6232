package stream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
)

// BenchmarkEncode makes the message of a command that is submitted.
func BenchmarkEncode(b *testing.B) {
	s := &Stream{prefix: subjectPrefix("main")}
	env := command.Envelope{
		Command: command.Command{ID: "order-20260731-000042", Queue: "default", Kind: "resize", Payload: make([]byte, 128)},
		Token:   "order-20260731-000042", Digest: "0123456789abcdef0123456789abcdef",
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := s.encode(env); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDelivery reads a delivery as it comes from the wire.
func BenchmarkDelivery(b *testing.B) {
	m := &nats.Msg{
		Subject: "main.commands.default.resize.order-20260731-000042",
		Reply:   "$JS.ACK.main_commands.default.1.123456.123457.1785500000123456789.42",
		Data:    make([]byte, 128),
	}
	from := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if d := NewDelivery("main", m, from, nil); d == nil || d.Seq != 123456 {
			b.Fatalf("delivery = %+v, want sequence 123456", d)
		}
	}
}
