//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// books is what the buckets say, read once.
type books struct {
	owners  map[place][]string         // ids that account for a sequence
	records map[string]*kvstate.Record // by id
	faults  []string
}

// place is a sequence of a shard's stream.
type place struct {
	shard int
	seq   uint64
}

func (b *books) fault(format string, args ...any) {
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

// settle waits until every command has left the stream. Acks travel after
// receipts, so a receipt does not mean that yet.
func (s *stand) settle(t *testing.T) {
	t.Helper()
	for _, shard := range s.pool.Shards() {
		await(t, "the stream to be empty", func() bool {
			state, err := shard.Commands.State(t.Context())
			return err == nil && state.Messages == 0
		})
	}
}

// checkBooks holds the pool to its invariants.
func checkBooks(t *testing.T, s *stand) {
	t.Helper()
	b := s.readBooks(t)
	for _, shard := range s.pool.Shards() {
		b.cover(t, s.pool, shard)
	}
	b.effects(s.lines(t), s.pool.Settings().MaxAttempts, s.amnesia)
	b.followUps()
	b.faults = append(b.faults, s.wit.check()...)
	for _, f := range b.faults {
		t.Error(f)
	}
}

func (s *stand) readBooks(t *testing.T) *books {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b := &books{owners: map[place][]string{}, records: map[string]*kvstate.Record{}}
	for _, shard := range s.pool.Shards() {
		await(t, "the witness to have seen every revision", func() bool {
			str, err := s.js.Stream(t.Context(), "KV_"+shard.Records.Bucket())
			if err != nil {
				return false
			}
			s.wit.mu.Lock()
			defer s.wit.mu.Unlock()
			return s.wit.last[shard.Records.Bucket()] >= str.CachedInfo().State.LastSeq
		})
		if err := shard.Records.Scan(ctx, func(e kvstate.Entry) error {
			b.enter(s.pool, shard.Index, e)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// enter takes down one entry of a shard's bucket.
func (b *books) enter(pool *tallyman.Pool, shard int, e kvstate.Entry) {
	if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
		b.own(place{shard, seq}, string(e.Raw))
		return
	}
	if kvstate.Own(e.Key) {
		return
	}
	if e.Err != nil {
		b.fault("entry %s does not decode: %v", e.Key, e.Err)
		return
	}
	for _, seq := range e.Record.Seqs {
		b.own(place{shard, seq}, e.Record.ID)
	}
	if strings.HasPrefix(string(e.Key), "_") {
		return // malformed or a conflict: parked beside the record of its id
	}
	if token, err := dedupe.Token(e.Record.ID); err != nil || token != e.Key {
		b.fault("key %s holds the record of %q", e.Key, e.Record.ID)
	}
	if home := pool.ShardOf(e.Key).Index; home != shard {
		b.fault("the record of %q lies in shard %d and belongs into %d", e.Record.ID, shard, home)
	}
	b.records[e.Record.ID] = e.Record
}

func (b *books) own(at place, id string) {
	if !slices.Contains(b.owners[at], id) {
		b.owners[at] = append(b.owners[at], id)
	}
}

// cover is I2 and I3: every sequence is in the stream or accounted for, once.
func (b *books) cover(t *testing.T, pool *tallyman.Pool, shard tallyman.Shard) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	state, err := shard.Commands.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if state.LastSeq == 0 {
		b.fault("the stream of shard %d has never held a command: nothing was tested", shard.Index)
	}
	for seq := uint64(1); seq <= state.LastSeq; seq++ {
		stored, err := shard.Commands.Get(ctx, seq)
		in := err == nil
		if err != nil && !errors.Is(err, stream.ErrNotFound) {
			t.Fatalf("get sequence %d: %v", seq, err)
		}
		ids := b.owners[place{shard.Index, seq}]
		switch {
		case len(ids) > 1:
			b.fault("I3: sequence %d is accounted for by %d ids: %v", seq, len(ids), ids)
		case len(ids) == 0 && !in:
			b.fault("I3: sequence %d is neither in the stream nor accounted for", seq)
		case in:
			id, err := dedupe.ParseToken(stored.Token)
			if err == nil && len(ids) == 1 && ids[0] != id {
				b.fault("I3: sequence %d holds %q and is accounted for by %q", seq, id, ids[0])
			}
		default:
			r := b.records[ids[0]]
			if r != nil && home(pool, r.ID) == shard.Index && !r.State.Terminal() && r.Accounts(seq) {
				b.fault("I2: sequence %d of %q has left the stream in state %s", seq, r.ID, r.State)
			}
		}
	}
}

// home is the shard of an id.
func home(pool *tallyman.Pool, id string) int {
	token, err := dedupe.Token(id)
	if err != nil {
		return -1
	}
	return pool.ShardOf(token).Index
}

// effects holds the receipts against what the handlers wrote down.
func (b *books) effects(lines []line, maxAttempts int, amnesia bool) {
	for _, r := range b.records {
		if r.Attempt > maxAttempts {
			b.fault("I8: %q has had %d attempts of %d", r.ID, r.Attempt, maxAttempts)
		}
		if r.State != kvstate.Completed {
			continue
		}
		mine, later := 0, 0
		for _, l := range lines {
			if l.id != r.ID {
				continue
			}
			switch {
			case l.what == "effect" && l.attempt == r.Attempt && ownedBy(r.Owner, l.pid):
				mine++
			case l.what == "begin" && l.attempt > r.Attempt:
				later++
			}
		}
		if mine < 1 || mine > 1 && !amnesia {
			b.fault("the receipt of %q claims attempt %d by %s, which had %d effects, want 1", r.ID, r.Attempt, r.Owner, mine)
		}
		if later > 0 {
			b.fault("I1: %q has its receipt from attempt %d, and %d later ones began", r.ID, r.Attempt, later)
		}
	}
	// I9: an effect that was announced happens at most once, and with a receipt
	// exactly once. The bank refuses stale tokens, as it must for this to hold.
	paid := map[string]int{}
	for _, l := range lines {
		if l.what == "paid" {
			paid[l.id]++
		}
	}
	for id, n := range paid {
		if n != 1 {
			b.fault("I9: %q was paid %d times", id, n)
		}
	}
	for _, r := range b.records {
		if r.Kind == "pay" && r.State == kvstate.Completed && paid[r.ID] == 0 {
			b.fault("I9: %q has its receipt and was not paid", r.ID)
		}
	}
	for _, l := range lines {
		if l.what == "effect" && b.records[l.id] == nil {
			// Within its first attempt a command has no record, so a lost one
			// shows only in tests that wait for receipts first, as all do.
			b.fault("I3: %q had an effect and has no record", l.id)
		}
	}
}

// ownedBy reports whether a record's owner is the worker with this process id.
func ownedBy(owner, pid string) bool { return strings.HasPrefix(owner, "p"+pid+"-") }

// followUps is I7.
func (b *books) followUps() {
	children := map[string]string{}
	for _, r := range b.records {
		if r.State != kvstate.Completed {
			continue
		}
		for _, c := range r.FollowUps {
			children[c.ID] = r.ID
			if b.records[c.ID] == nil {
				b.fault("I7: %q has its receipt, its follow-up %q does not exist", r.ID, c.ID)
			}
		}
	}
	for id, r := range b.records {
		if parent, _, ok := strings.Cut(id, "/"); ok && children[id] != parent {
			b.fault("I7: %q (%s) exists without the receipt of %q", id, r.State, parent)
		}
	}
}
