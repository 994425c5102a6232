package kvstate

import (
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/command"
)

type askedFor struct {
	Keys  []string `json:"multi_last"`
	From  uint64   `json:"seq"`
	UpTo  uint64   `json:"up_to_seq"`
	Bytes int      `json:"max_bytes"`
}

// FuzzBatchRequest has the server understand what is asked, whatever the keys:
// those of hand-made subjects are no tokens.
func FuzzBatchRequest(f *testing.F) {
	f.Add("a", "_absorbed/7", uint64(0), uint64(0))
	f.Add(`a"b\c`, "\x00\x1f\x7f<>&\u2028é", uint64(3), uint64(1<<64-1))
	f.Fuzz(func(t *testing.T, one, other string, from, upTo uint64) {
		if !utf8.ValidString(one) || !utf8.ValidString(other) {
			return // JSON spells nothing else
		}
		b := &batch{store: &Store{prefix: "$KV.main."}, from: from, upTo: upTo, entries: []Entry{{Key: command.Token(one)}, {Key: command.Token(other)}}}
		var got askedFor
		if err := json.Unmarshal(b.request(nil), &got); err != nil {
			t.Fatalf("%s: %v", b.request(nil), err)
		}
		if want := []string{"$KV.main." + one, "$KV.main." + other}; !slices.Equal(got.Keys, want) || got.From != from || got.UpTo != upTo || got.Bytes != batchBytes {
			t.Fatalf("%s: got %+v, want %q from %d up to %d", b.request(nil), got, want, from, upTo)
		}
	})
}

func BenchmarkBatchRequest(b *testing.B) {
	batch := &batch{store: &Store{prefix: "$KV.main."}, entries: make([]Entry, 100)}
	for i := range batch.entries {
		batch.entries[i].Key = "order-2024-000017"
	}
	var room []byte
	b.ReportAllocs()
	for b.Loop() {
		room = batch.request(room[:0])
	}
}
