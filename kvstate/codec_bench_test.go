package kvstate

import (
	"testing"
	"time"
)

// receipt is what the happy path writes: one per command.
func receipt() *Record {
	return &Record{
		ID: "order-20260731-000042", Kind: "resize", Queue: "default",
		Digest: "0123456789abcdef0123456789abcdef", State: Completed, Attempt: 1,
		Owner: "worker-1", Seqs: []uint64{123456}, Result: []byte("sixteen bytes ok"),
		Trail: []Step{{At: time.Unix(1785500000, 123456789), State: Completed, Owner: "worker-1"}},
	}
}

func BenchmarkEncode(b *testing.B) {
	r := receipt()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Encode(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	data, err := Encode(receipt())
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
