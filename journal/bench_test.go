package journal_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/tallyman-go/tallyman/journal"
)

// BenchmarkCommit decides on runs of their own, side by side.
func BenchmarkCommit(b *testing.B) {
	r := newRig(b)
	var runs atomic.Uint64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		run := fmt.Sprint("run-", runs.Add(1))
		for n := uint64(0); pb.Next(); n++ {
			if _, err := r.Commit(r.ctx, run, n, order("went on", 1)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkReplay folds a run of 10,000 decisions; one round is one decision.
func BenchmarkReplay(b *testing.B) {
	r := newRig(b)
	const decisions = 10_000
	for n := range uint64(decisions) {
		if _, err := r.Commit(r.ctx, "a", n, events("went on")); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for n := 0; n < b.N; n += decisions {
		if _, err := r.Replay(r.ctx, "a", func(journal.Recorded) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRelay publishes what waits; one round is one decision of one command.
func BenchmarkRelay(b *testing.B) {
	r := newRig(b)
	for n := range b.N {
		if _, err := r.Commit(r.ctx, fmt.Sprint("run-", n), 0, order("opened", 1)); err != nil {
			b.Fatal(err)
		}
	}
	to := r.producer(b)
	b.ResetTimer()
	_, stop := relay(b, r.party, to, journal.RelayConfig{})
	r.published(b)
	b.StopTimer()
	stop()
}
