package kvstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
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
		dirty := bytes.Repeat([]byte(`"]},`), 1000)[:0] // of a longer request
		if got, want := b.request(dirty), b.request(nil); !bytes.Equal(got, want) {
			t.Fatalf("in memory that is used again: got %s, want %s", got, want)
		}
	})
}

// A request that is larger than most is not kept for the next one.
func TestBatch_KeepsNoLargeRequest(t *testing.T) { //nolint:paralleltest // others take what is kept
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pipe.Close(); err != nil { // nothing is sent
		t.Fatal(err)
	}
	kept := 0
	for _, n := range []int{10, 1000, 10_000} {
		b := &batch{store: &Store{pipe: pipe, prefix: "$KV.main."}, entries: make([]Entry, n)}
		for range 20 { // what is given back may be dropped at any time
			if err := b.send(); !errors.Is(err, pipeline.ErrClosed) {
				t.Fatalf("got %v, want ErrClosed", err)
			}
			for room := requests.Get().(*[]byte); cap(*room) > 0; room = requests.Get().(*[]byte) {
				if kept++; cap(*room) > maxRequest {
					t.Errorf("after a request for %d keys: one of %d bytes is kept, want no more than %d", n, cap(*room), maxRequest)
				}
			}
		}
	}
	if kept == 0 {
		t.Error("no request is kept")
	}
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
