package kvstate_test

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/kvstate"
)

// writeAll writes one record per key, pipelined, over the given revisions, and
// returns the new ones.
func writeAll(t *testing.T, s *kvstate.Store, keys []command.Token, over []uint64, checkpoint []byte) []uint64 {
	t.Helper()
	type answer struct {
		i        int
		revision uint64
		err      error
	}
	const window = 1000
	answers := make(chan answer, window)
	revisions := make([]uint64, len(keys))
	collect := func() {
		t.Helper()
		a := <-answers
		if a.err != nil {
			t.Fatalf("write %s: %v", keys[a.i], a.err)
		}
		revisions[a.i] = a.revision
	}
	for i, key := range keys {
		if i >= window {
			collect()
		}
		r := &kvstate.Record{ID: string(key), Kind: "echo", State: kvstate.Claimed, Checkpoint: checkpoint}
		if over != nil {
			r.Revision = over[i]
		}
		if err := s.Write(key, r, func(revision uint64, err error) { answers <- answer{i, revision, err} }); err != nil {
			t.Fatal(err)
		}
	}
	for range min(window, len(keys)) {
		collect()
	}
	return revisions
}

// TestStore_ScanOfLargeRecords has more bytes in its records than a client
// takes in one pull, and keys that go while it scans.
func TestStore_ScanOfLargeRecords(t *testing.T) {
	const n, size, gone = 120, 900_000, 20
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if err := tallyman.Create(t.Context(), nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	p, err := tallyman.Open(t.Context(), nc, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // returns nil
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	str, err := js.Stream(t.Context(), "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]command.Token, n)
	for i := range keys {
		keys[i] = command.Token(fmt.Sprintf("c-%d", i))
	}
	writeAll(t, p.Records(), keys, nil, bytes.Repeat([]byte{'x'}, size))
	var visited []command.Token
	if err := p.Records().Scan(t.Context(), func(e kvstate.Entry) error {
		if kvstate.Own(e.Key) {
			return nil
		}
		visited = append(visited, e.Key)
		if len(visited) > 1 {
			return nil
		}
		for _, key := range keys[n-gone:] {
			if err := str.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.main."+string(key))); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(visited, keys[:n-gone]) {
		t.Errorf("visited %d keys, want the %d that were not purged, each once", len(visited), n-gone)
	}
	left := 0
	for range str.ListConsumers(t.Context()).Info() {
		left++
	}
	if left != 0 {
		t.Errorf("the scan left %d consumers behind", left)
	}
}

// TestStore_ScanOfManyKeys must not run beside others: it reads the whole
// process's account of memory.
func TestStore_ScanOfManyKeys(t *testing.T) {
	const n, size = 20_000, 1 << 10
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if err := tallyman.Create(t.Context(), nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	p, err := tallyman.Open(t.Context(), nc, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // returns nil

	keys := make([]command.Token, n)
	for i := range keys {
		keys[i] = command.Token(fmt.Sprintf("c-%d", i))
	}
	newest := writeAll(t, p.Records(), keys, nil, bytes.Repeat([]byte{'x'}, size))
	const rewritten = 1000
	for _, from := range []int{0, n - rewritten} { // the older revisions lie at the beginning and at the end
		to := from + rewritten
		copy(newest[from:], writeAll(t, p.Records(), keys[from:to], newest[from:to], bytes.Repeat([]byte{'y'}, size)))
	}
	want := make(map[command.Token]uint64, n)
	for i, key := range keys {
		want[key] = newest[i]
	}

	t.Run("visits each key once, at its newest revision", func(t *testing.T) {
		visits := make(map[command.Token]int, n)
		if err := p.Records().Scan(t.Context(), func(e kvstate.Entry) error {
			if kvstate.Own(e.Key) {
				return nil
			}
			visits[e.Key]++
			if e.Record == nil || e.Revision != want[e.Key] {
				t.Errorf("%s: got revision %d, %v; want %d", e.Key, e.Revision, e.Err, want[e.Key])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(visits) != n {
			t.Errorf("got %d keys, want %d", len(visits), n)
		}
		for key, got := range visits {
			if got != 1 {
				t.Errorf("%s: visited %d times, want once", key, got)
			}
		}
	})
	t.Run("does not gather them in memory", func(t *testing.T) {
		// The server lives in this process too, and may cache all of them once.
		// Gathered entries, with the messages they came in, take about twice that.
		const limit = n * size * 3 / 2
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, most, visited := heap(), uint64(0), 0
		if err := p.Records().Scan(t.Context(), func(kvstate.Entry) error {
			if visited++; visited%2000 == 0 {
				most = max(most, heap())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if visited < n {
			t.Errorf("visited %d entries, want at least %d", visited, n)
		}
		if most > before+limit {
			t.Errorf("the heap grew by %d bytes, want at most %d for records of %d", most-before, limit, n*size)
		}
	})
}
