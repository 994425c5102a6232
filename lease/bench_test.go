package lease

import (
	"testing"
	"time"
)

// BenchmarkHold takes a lease beside others and gives it back, as every
// delivery does.
func BenchmarkHold(b *testing.B) {
	k := NewKeeper(Terms{Wait: wait}, nil)
	start := time.Now().Add(time.Hour) // however long this runs
	for range 100 {
		hold(k, start, nil)
	}
	b.ReportAllocs()
	for b.Loop() {
		var l Lease
		k.HoldIn(&l, nil, start)
		if !l.Held() || !k.Release(&l) {
			b.Fatal("a lease that has just begun is not held")
		}
	}
}
