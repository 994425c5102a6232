package audit

import (
	"math"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// When a sequence may be missing because its receipt has expired.
func TestClues_Expired(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	ago := func(days int) time.Time { return now.AddDate(0, 0, -days) }
	for _, c := range []struct {
		name    string
		keep    time.Duration
		created time.Time
		before  time.Time // sequence 50 had been handed out at the latest
		below   time.Time // when a stored sequence before it was stored; zero for none
		final   uint64    // first sequence of what expires and is left
		want    bool
	}{
		{"older than the retention", 7 * 24 * time.Hour, ago(30), ago(8), time.Time{}, 10, true},
		{"of unknown age, and nothing that expires is left from before", 7 * 24 * time.Hour, ago(30), ago(1), time.Time{}, 60, true},
		{"and nothing that expires is left at all", 7 * 24 * time.Hour, ago(30), ago(1), time.Time{}, math.MaxUint64, true},
		{"of unknown age, and a receipt from before is left", 7 * 24 * time.Hour, ago(30), ago(1), time.Time{}, 49, false},
		{"younger than a command before it, which is young", 7 * 24 * time.Hour, ago(30), ago(1), ago(2), 60, false},
		{"behind a command that waits for long", 7 * 24 * time.Hour, ago(30), ago(1), ago(20), 60, true},
		{"in a pool that is younger than its retention", 7 * 24 * time.Hour, ago(6), ago(6), time.Time{}, 60, false},
		{"where receipts never expire", 0, ago(300), ago(200), time.Time{}, 60, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			records := &kvstate.Store{}
			records.Keep(c.keep)
			b := newBooks(nil, records, 0, 100)
			b.created = c.created
			cl := &clues{b: b, seqs: []uint64{50}, before: []time.Time{c.before}, below: []uint64{0}, final: c.final, now: now, at: map[uint64]time.Time{}}
			if !c.below.IsZero() {
				cl.below[0], cl.at[40] = 40, c.below
			}
			if got, why := cl.expired(t.Context(), 0); got != c.want || got != (why != "") {
				t.Errorf("got %v, %q; want %v", got, why, c.want)
			}
		})
	}
}

// Upper bounds of age go to the sequences before the one that is known, and
// neighbours are those that are stored.
func TestClues_Bounds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	b := newBooks(nil, nil, 0, 100)
	for _, seq := range []uint64{5, 30} {
		b.stored.add(seq)
	}
	c := &clues{b: b, seqs: []uint64{3, 10, 20, 40}, before: []time.Time{now, now, now, now}, below: make([]uint64, 4)}
	c.latest(15, now.Add(-time.Hour))
	c.latest(2, now.Add(-2*time.Hour)) // says nothing of any that is missing
	c.neighbours()
	for i, want := range []struct {
		before time.Time
		below  uint64
	}{{now, 0}, {now.Add(-time.Hour), 5}, {now, 5}, {now, 30}} {
		if c.before[i] != want.before || c.below[i] != want.below {
			t.Errorf("sequence %d: got %v and %d, want %v and %d", c.seqs[i], c.before[i], c.below[i], want.before, want.below)
		}
	}
}
