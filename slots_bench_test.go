package tallyman

import (
	"testing"
	"time"
)

// BenchmarkSlots takes one delivery through the slots: counted, put in front,
// started, and finished.
func BenchmarkSlots(b *testing.B) {
	var s slots
	s.init(100, time.Minute)
	r := &run{}
	b.ReportAllocs()
	for b.Loop() {
		s.take(1)
		if start, ok := s.push(r); !start || !ok {
			b.Fatalf("push: start %v, ok %v; want a free slot", start, ok)
		}
		if got, _ := s.next(time.Minute, true); got != r {
			b.Fatalf("next = %p, want %p", got, r)
		}
		s.ran(time.Microsecond)
		if got, _ := s.next(time.Minute, false); got != nil {
			b.Fatalf("next = %p, want the slot given up", got)
		}
		s.finish()
	}
}
