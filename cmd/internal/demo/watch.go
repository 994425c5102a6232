package demo

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/kvstate"
)

// watch sees every record that the bucket takes in, as it is stored. It is
// safe for concurrent use.
type watch struct {
	watcher jetstream.KeyWatcher
	ended   chan struct{}

	mu       sync.Mutex
	receipts map[string]map[uint64]bool // by id: the revisions of its receipts
	parked   map[string]string          // by id: why
}

func newWatch(ctx context.Context, js jetstream.JetStream) (*watch, error) {
	bucket, err := js.KeyValue(ctx, poolName)
	if err != nil {
		return nil, fmt.Errorf("watch the bucket: %w", err)
	}
	w := &watch{ended: make(chan struct{}), receipts: map[string]map[uint64]bool{}, parked: map[string]string{}}
	if w.watcher, err = bucket.WatchAll(ctx, jetstream.IncludeHistory()); err != nil {
		return nil, fmt.Errorf("watch the bucket: %w", err)
	}
	go func() {
		defer close(w.ended)
		for e := range w.watcher.Updates() {
			if e == nil || strings.HasPrefix(e.Key(), "_") || e.Operation() != jetstream.KeyValuePut {
				continue
			}
			// What does not decode is found by the closing of the books.
			if r, err := kvstate.Decode(e.Value()); err == nil {
				w.see(r, e.Revision())
			}
		}
	}()
	return w, nil
}

// see notes a record of the given revision. Seeing one twice changes nothing.
func (w *watch) see(r *kvstate.Record, revision uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.State {
	case kvstate.Completed:
		if w.receipts[r.ID] == nil {
			w.receipts[r.ID] = map[uint64]bool{}
		}
		w.receipts[r.ID][revision] = true
	case kvstate.Parked:
		w.parked[r.ID] = r.Error
	}
}

// settled returns how many commands have a receipt or are parked.
func (w *watch) settled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.receipts) + len(w.parked)
}

// close ends the watch. Its fields are the caller's from then on.
func (w *watch) close() {
	_ = w.watcher.Stop() // fails only when the connection is gone
	<-w.ended
}

// scan adds what the bucket holds now, and returns how many commands are completed.
func (w *watch) scan(ctx context.Context, records *kvstate.Store) (completed int, err error) {
	err = records.Scan(ctx, func(e kvstate.Entry) error {
		switch {
		case kvstate.Own(e.Key):
		case e.Err != nil:
			return fmt.Errorf("record %s: %w", e.Key, e.Err)
		default:
			w.see(e.Record, e.Revision)
			if e.Record.State == kvstate.Completed {
				completed++
			}
		}
		return nil
	})
	return completed, err
}
