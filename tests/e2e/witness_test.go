//go:build unix

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

const bucketStream = "KV_" + tallyman.DefaultPool

// witness follows the buckets and so sees revisions that are gone later.
type witness struct {
	mu        sync.Mutex
	last      map[string]uint64 // newest revision seen, by bucket
	revisions map[string][]*kvstate.Record
}

func watch(t *testing.T, js jetstream.JetStream, shards []tallyman.Shard) *witness {
	t.Helper()
	w := &witness{last: map[string]uint64{}, revisions: map[string][]*kvstate.Record{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, s := range shards {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.follow(ctx, js, s.Records.Bucket())
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return w
}

// follow reads on from the newest revision seen until something goes wrong.
func (w *witness) follow(ctx context.Context, js jetstream.JetStream, bucket string) {
	w.mu.Lock()
	from := w.last[bucket] + 1
	w.mu.Unlock()
	some, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cons, err := js.OrderedConsumer(some, "KV_"+bucket, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		MaxResetAttempts: 1, // by default it goes on for ever once the server is gone, whatever ctx says
	})
	if err != nil {
		<-time.After(50 * time.Millisecond) // the server is away
		return
	}
	for ctx.Err() == nil {
		batch, err := cons.Fetch(256, jetstream.FetchMaxWait(300*time.Millisecond))
		if err != nil {
			return
		}
		for m := range batch.Messages() {
			w.see(bucket, m)
		}
		if batch.Error() != nil {
			return
		}
	}
}

func (w *witness) see(bucket string, m jetstream.Msg) {
	meta, err := m.Metadata()
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if meta.Sequence.Stream <= w.last[bucket] {
		return
	}
	w.last[bucket] = meta.Sequence.Stream
	key := strings.TrimPrefix(m.Subject(), "$KV."+bucket+".")
	if strings.HasPrefix(key, "_") {
		return
	}
	if len(m.Data()) == 0 {
		w.revisions[key] = append(w.revisions[key], nil) // deleted
		return
	}
	r, err := kvstate.Decode(m.Data())
	if err != nil {
		return // the books tell
	}
	r.Revision = w.last[bucket]
	w.revisions[key] = append(w.revisions[key], r)
}

// check returns what no history may show.
func (w *witness) check() (faults []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, history := range w.revisions {
		var before *kvstate.Record
		for _, r := range history {
			if before != nil && r != nil {
				at := fmt.Sprintf("%s, revision %d after %d", key, r.Revision, before.Revision)
				switch {
				case before.State.Final():
					faults = append(faults, fmt.Sprintf("I1: %s: written over a final record: %s after %s", at, r.State, before.State))
				case r.Offset < before.Offset:
					faults = append(faults, fmt.Sprintf("I5: %s: offset %d after %d", at, r.Offset, before.Offset))
				case r.Token != 0 && r.Token < before.Token:
					faults = append(faults, fmt.Sprintf("I4: %s: token %d after %d", at, r.Token, before.Token))
				case r.Owner != before.Owner && r.State == before.State && r.Attempt <= before.Attempt:
					faults = append(faults, fmt.Sprintf("I4: %s: %s took over from %s within attempt %d", at, r.Owner, before.Owner, r.Attempt))
				}
			}
			before = r
		}
	}
	return faults
}

// claimedAt returns the offset of the record with which an attempt was claimed.
func (w *witness) claimedAt(id string, attempt int) (offset uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.revisions[id] {
		if r != nil && r.State == kvstate.Claimed && r.Attempt == attempt {
			return r.Offset, true
		}
	}
	return 0, false
}
