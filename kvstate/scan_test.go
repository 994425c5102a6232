package kvstate_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
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

// scale is how many records the test of large buckets writes: 20,000, or what
// TALLYMAN_SCALE says, as make scale does.
func scale(t *testing.T) int {
	t.Helper()
	text := os.Getenv("TALLYMAN_SCALE")
	if text == "" {
		return 20_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 10_000 {
		t.Fatalf("TALLYMAN_SCALE=%q: want a number of at least 10000", text)
	}
	return n
}

// living counts what a scan has handed out and not let go of.
type living struct{ records, bytes atomic.Int64 }

func (l *living) add(e kvstate.Entry) {
	gone := func(n *atomic.Int64) { n.Add(-1) }
	if e.Record != nil {
		l.records.Add(1)
		runtime.AddCleanup(e.Record, gone, &l.records)
	}
	l.bytes.Add(1)
	runtime.AddCleanup(&e.Raw[0], gone, &l.bytes)
}

// settle collects garbage until no more than limit of either are left, or that
// is clearly in vain.
func (l *living) settle(limit int64) (records, bytes int64) {
	for range 50 {
		runtime.GC()
		runtime.Gosched() // cleanups run on goroutines of their own
		if records, bytes = l.records.Load(), l.bytes.Load(); records <= limit && bytes <= limit {
			break
		}
	}
	return records, bytes
}

// TestStore_ScanOfLargeRecords has more bytes in its records than a client
// takes in one pull, and keys that go while it scans.
func TestStore_ScanOfLargeRecords(t *testing.T) {
	const n, size, gone = 120, 900_000, 20
	store, str := newStore(t, tallyman.Settings{})
	keys := make([]command.Token, n)
	for i := range keys {
		keys[i] = command.Token(fmt.Sprintf("c-%d", i))
	}
	writeAll(t, store, keys, nil, bytes.Repeat([]byte{'x'}, size))
	var visited []command.Token
	if err := store.Scan(t.Context(), func(e kvstate.Entry) error {
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
// process's account of memory. Listing a million keys took gigabytes
// elsewhere: nats.go#1485.
func TestStore_ScanOfManyKeys(t *testing.T) {
	n := scale(t)
	size := min(1<<10, 256<<20/n)
	store, _ := newStore(t, tallyman.Settings{})
	keys := make([]command.Token, n)
	for i := range keys {
		keys[i] = command.Token(fmt.Sprintf("c-%d", i))
	}
	newest := writeAll(t, store, keys, nil, bytes.Repeat([]byte{'x'}, size))
	const rewritten = 1000
	for _, from := range []int{0, n - rewritten} { // the older revisions lie at the beginning and at the end
		to := from + rewritten
		copy(newest[from:], writeAll(t, store, keys[from:to], newest[from:to], bytes.Repeat([]byte{'y'}, size)))
	}

	t.Run("visits each key once, at its newest revision", func(t *testing.T) {
		visits := make([]int, n)
		if err := store.Scan(t.Context(), func(e kvstate.Entry) error {
			if kvstate.Own(e.Key) {
				return nil
			}
			i, err := strconv.Atoi(strings.TrimPrefix(string(e.Key), "c-"))
			if err != nil || i < 0 || i >= n {
				t.Fatalf("visited %q, which was never written", e.Key)
			}
			visits[i]++
			if e.Record == nil || e.Revision != newest[i] {
				t.Errorf("%s: got revision %d, %v; want %d", e.Key, e.Revision, e.Err, newest[i])
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i, got := range visits {
			if got != 1 {
				t.Errorf("%s: visited %d times, want once", keys[i], got)
			}
		}
	})
	t.Run("does not gather them in memory", func(t *testing.T) {
		// What is on its way, whatever the number of keys.
		const most = 2048
		// The server lives in this process too, and may cache all of them once.
		// Gathered entries, with the messages they came in, take about twice that.
		limit := uint64(n * size * 3 / 2)
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		runtime.GC()
		var live living
		before, peak, visited := heap(), uint64(0), 0
		if err := store.Scan(t.Context(), func(e kvstate.Entry) error {
			live.add(e)
			if visited++; visited%(n/10) == 0 {
				if records, bodies := live.settle(most); records > most || bodies > most {
					t.Errorf("after %d of %d keys: %d records and %d bodies are alive, want at most %d", visited, n, records, bodies, most)
				}
				peak = max(peak, heap())
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if visited < n {
			t.Errorf("visited %d entries, want at least %d", visited, n)
		}
		if peak > before+limit {
			t.Errorf("the heap grew by %d bytes, want at most %d for records of %d", peak-before, limit, n*size)
		}
	})
}
