//go:build unix

package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestKill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point   string
		effects int // how often the effect happens
		attempt int // that the receipt tells of
	}{
		{"before-handler", 1, 2},
		{"after-handler", 2, 2}, // the effect is there, the receipt is not
		{"before-ack", 1, 1},    // the receipt is there, the ack is not
	} {
		for _, shards := range []int{1, 4} {
			t.Run(tt.point+" of "+strconv.Itoa(shards)+" shards", func(t *testing.T) {
				t.Parallel()
				s := newStand(t, sharded(shards))
				first := s.worker(t, s.failAt(tt.point, "c-1"))
				s.submit(t, "log", "c-1", "one")
				others := s.ids("c", 1)
				for _, id := range others {
					s.submit(t, "log", id, "two")
				}
				first.waitEnd(t, "it was to die at "+tt.point)
				if !first.wasKilled() {
					t.Fatalf("the worker ended with %v, want killed", first.cmd.ProcessState)
				}
				s.worker(t)
				r := s.receipt(t, "c-1")
				if string(r.Result) != "one" || r.Attempt != tt.attempt {
					t.Errorf("got result %q of attempt %d, want %q of attempt %d", r.Result, r.Attempt, "one", tt.attempt)
				}
				for _, id := range others {
					s.receipt(t, id)
				}
				s.settle(t)
				if got := len(s.of(t, "effect", "c-1")); got != tt.effects {
					t.Errorf("got %d effects, want %d", got, tt.effects)
				}
				checkBooks(t, s)
			})
		}
	}
}

// sharded are the short settings over some shards.
func sharded(n int) tallyman.Settings {
	settings := short
	settings.Shards = n
	return settings
}

// ids returns n ids for each shard, in the order of the shards; none ends in -1.
func (s *stand) ids(prefix string, n int) (ids []string) {
	for shard := range s.pool.Shards() {
		for i, found := 2, 0; found < n; i++ {
			if id := prefix + "-" + strconv.Itoa(i); home(s.pool, id) == shard {
				ids = append(ids, id)
				found++
			}
		}
	}
	return ids
}

// A worker dies while it forwards commands that were published to the first
// shard by hand.
func TestKill_Forwarding(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before-forward", "after-forward", "before-ack"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, sharded(4))
			ids := s.ids("c", 3)
			for _, id := range ids {
				s.publish(t, "log", id, "x", id)
			}
			first := s.worker(t, s.failAt(point, ids[len(ids)-1]))
			first.waitEnd(t, "it was to die at "+point)
			s.worker(t)
			for _, id := range ids {
				s.receipt(t, id)
			}
			s.settle(t)
			b := s.readBooks(t)
			for seq, id := range ids {
				got := b.owners[place{0, uint64(seq) + 1}]
				if len(got) != 1 || got[0] != id {
					t.Errorf("sequence %d of the first shard is accounted for by %v, want %s", seq+1, got, id)
				}
			}
			checkBooks(t, s)
		})
	}
}

func TestKill_BetweenFollowUps(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"before-follow-ups", "between-follow-ups"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, short)
			first := s.worker(t, s.failAt(point, "p-1"))
			s.submit(t, "parent", "p-1", "x")
			first.waitEnd(t, "it was to die at "+point)
			s.worker(t)
			for _, id := range []string{"p-1/1", "p-1/2"} {
				s.receipt(t, id)
			}
			s.settle(t)
			if got := len(s.of(t, "effect", "p-1")); got != 1 {
				t.Errorf("the parent: got %d effects, want 1", got)
			}
			for _, id := range []string{"p-1/1", "p-1/2"} {
				// The worker that died may have been at work on a follow-up as well.
				died, second := 0, 0
				for _, l := range s.of(t, "effect", id) {
					if l.pid == strconv.Itoa(first.pid) {
						died++
					} else {
						second++
					}
				}
				if died > 1 || second > 1 || died+second == 0 {
					t.Errorf("%s: got %d effects by the worker that died and %d by the other, want one at most of each, and one at least", id, died, second)
				}
			}
			checkBooks(t, s)
		})
	}
}

func TestKill_DuringProgress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point  string
		beyond int // steps that the first attempt took beyond the durable offset
	}{{"before-progress", 1}, {"after-progress", 0}} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			const steps = 20
			s := newStand(t, short)
			// The point waits until there is some progress to lose.
			if err := os.WriteFile(s.path("died"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			first := s.worker(t, s.failAt(tt.point, "s-1"))
			s.submit(t, "steps", "s-1", strconv.Itoa(steps)+" 50ms")
			await(t, "three steps", func() bool { return len(s.of(t, "step", "s-1")) >= 3 })
			if err := os.Remove(s.path("died")); err != nil {
				t.Fatal(err)
			}
			first.waitEnd(t, "it was to die at "+tt.point)
			rec, err := s.pool.Find(t.Context(), "s-1")
			if err != nil {
				t.Fatal(err)
			}
			s.worker(t)
			if r := s.receipt(t, "s-1"); r.Attempt != 2 {
				t.Errorf("got the receipt of attempt %d, want 2", r.Attempt)
			}
			s.settle(t)
			last, next := 0, int(rec.Offset)
			for _, l := range s.of(t, "step", "s-1") {
				at, err := strconv.Atoi(l.detail)
				if err != nil {
					t.Fatal(err)
				}
				if l.attempt == 1 {
					last = at
					continue
				}
				if next++; at != next {
					t.Errorf("the takeover from offset %d took step %d, want %d", rec.Offset, at, next)
				}
			}
			if got, want := last-int(rec.Offset), tt.beyond; got != want {
				t.Errorf("the first attempt got %d steps beyond the durable offset %d, want %d", got, rec.Offset, want)
			}
			if next != steps {
				t.Errorf("the takeover ended at step %d, want %d", next, steps)
			}
			checkBooks(t, s)
		})
	}
}

func TestKill_AroundAnEffect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		point   string
		confirm string // what the second worker's attempt comes to: paid or confirmed
	}{
		{"before-progress", "paid"},    // nothing was announced
		{"after-progress", "paid"},     // announced, and not paid
		{"after-handler", "confirmed"}, // paid, and no receipt
	} {
		t.Run(tt.point, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, short)
			first := s.worker(t, s.failAt(tt.point, "p-1"))
			s.submit(t, "pay", "p-1", "5")
			first.waitEnd(t, "it was to die at "+tt.point)
			s.worker(t)
			if r := s.receipt(t, "p-1"); string(r.Result) != "5" || r.Attempt != 2 {
				t.Errorf("got %+v", r)
			}
			s.settle(t)
			if got := s.of(t, "paid", "p-1"); len(got) != 1 {
				t.Errorf("paid %d times, want once", len(got))
			}
			if got := s.of(t, "effect", "p-1"); got[len(got)-1].detail != tt.confirm {
				t.Errorf("the last attempt %s, want %s", got[len(got)-1].detail, tt.confirm)
			}
			checkBooks(t, s)
		})
	}
	t.Run("without a Confirm a person decides", func(t *testing.T) {
		t.Parallel()
		s := newStand(t, short)
		first := s.worker(t, s.failAt("after-handler", "u-1"))
		s.submit(t, "unsure", "u-1", "5")
		first.waitEnd(t, "it was to die at after-handler")
		s.worker(t)
		s.settle(t)
		rec, err := s.pool.Find(t.Context(), "u-1")
		if err != nil {
			t.Fatal(err)
		}
		if rec.State != kvstate.Parked || rec.Reason != kvstate.ReasonUncertain || string(rec.Intent) != "pay u-1" || rec.Command == nil {
			t.Errorf("got %+v, want it parked as uncertain, with intent and command", rec)
		}
		if got := s.of(t, "paid", "u-1"); len(got) != 1 {
			t.Errorf("paid %d times, want once", len(got))
		}
		checkBooks(t, s)
	})
}

// TestKill_AtRandomMoments kills workers while each is in the middle of several
// commands, and looks where those who took over went on.
func TestKill_AtRandomMoments(t *testing.T) {
	t.Parallel()
	const commands, steps, kills = 24, 30, 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	settings := short
	settings.Lease, settings.MaxAttempts = time.Second, 100 // some run out between the kills
	s := newStand(t, settings)
	s.amnesia = true // a worker that dies in its first attempt leaves no count
	for i := range commands {
		s.submit(t, "steps", "r-"+strconv.Itoa(i), strconv.Itoa(steps)+" 20ms")
	}
	for range kills {
		w := s.worker(t)
		await(t, "some steps", func() bool { return len(s.of(t, "step", "r-"+strconv.Itoa(random.IntN(commands)))) > 0 })
		pause := time.NewTimer(time.Duration(random.IntN(300)) * time.Millisecond)
		<-pause.C
		w.kill()
	}
	s.worker(t)
	for i := range commands {
		s.receipt(t, "r-"+strconv.Itoa(i))
	}
	s.settle(t)
	checkBooks(t, s)

	resumed := 0
	for i := range commands {
		id := "r-" + strconv.Itoa(i)
		first := map[int]int{} // step of each attempt
		for _, l := range s.of(t, "step", id) {
			at, err := strconv.Atoi(l.detail)
			if err != nil {
				t.Fatal(err)
			}
			if _, known := first[l.attempt]; !known {
				first[l.attempt] = at
			}
		}
		for attempt, at := range first {
			durable, known := s.wit.claimedAt(id, attempt)
			if attempt == 1 || !known {
				continue
			}
			resumed++
			if at != int(durable)+1 {
				t.Errorf("%s: attempt %d went on with step %d, and %d was durable when it was claimed", id, attempt, at, durable)
			}
		}
	}
	if resumed < commands/4 { // the witness misses what is overwritten at once
		t.Errorf("only %d takeovers were seen: hardly anything was shown", resumed)
	}
}
