package audit

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/tallyman-go/tallyman/kvstate"
)

// Ten million sequences cost four bits each, and findings no more than their lists.
func TestBooks_MemoryOfTenMillionSequences(t *testing.T) {
	const n, limit = 10_000_000, 8 << 20 // 5 MB of bitmaps, and room for the lists
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	b := newBooks(nil, nil, 0, n)
	r := &kvstate.Record{ID: "c", State: kvstate.Completed, Seqs: make([]uint64, 1)}
	for seq := uint64(1); seq <= n; seq++ {
		switch seq % 10 {
		case 0: // is gone without a trace
			continue
		case 1:
			b.stored.add(seq)
			continue
		}
		r.Seqs[0] = seq
		if err := b.entry(t.Context(), kvstate.Entry{Key: "c", Record: r}); err != nil {
			t.Fatal(err)
		}
		if seq%10 == 2 {
			b.book(seq, true) // met twice
		}
	}
	b.balance()
	after := heap()
	if after > before+limit {
		t.Errorf("%d bytes for %d sequences, want at most %d", after-before, n, limit)
	}
	got := b.report
	if got.MissingCount != n/10 || len(got.Missing) != ListLimit || got.Pending != n/10 || got.Completed != n/10*8 || b.suspects != n/10 || got.Balanced {
		t.Errorf("got %d missing (%d listed), %d pending, %d completed, %d suspects, balanced %v",
			got.MissingCount, len(got.Missing), got.Pending, got.Completed, b.suspects, got.Balanced)
	}
	if through := b.provedThrough(); through != 0 {
		t.Errorf("proved through %d, where sequence 1 is in the stream", through)
	}
	runtime.KeepAlive(b)
}

// The bitmap against a plain set.
func TestBitmap(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		base := rng.Uint64N(1000)
		last := base + rng.Uint64N(200)
		a, b := newBitmap(base, last), newBitmap(base, last)
		inA, inB := map[uint64]bool{}, map[uint64]bool{}
		for range 100 {
			seq := rng.Uint64N(1300)
			covered := seq > base && seq <= last
			if got := a.add(seq); got != inA[seq] {
				t.Fatalf("seed %d: add %d to (%d, %d]: got %v, want %v", seed, seq, base, last, got, inA[seq])
			}
			if covered {
				inA[seq] = true
			}
			if seq = rng.Uint64N(1300); seq > base && seq <= last {
				b.add(seq)
				inB[seq] = true
			}
		}
		var without uint64
		for seq := uint64(0); seq < 1300; seq++ {
			if a.has(seq) != inA[seq] {
				t.Fatalf("seed %d: %d in (%d, %d]: got %v, want %v", seed, seq, base, last, a.has(seq), inA[seq])
			}
			if inA[seq] && !inB[seq] {
				without++
			}
		}
		if a.count() != uint64(len(inA)) || a.without(&b) != without {
			t.Fatalf("seed %d: got count %d, without %d; want %d, %d", seed, a.count(), a.without(&b), len(inA), without)
		}
	}
}
