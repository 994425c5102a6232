package journal_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/kvstate"
)

// ledger is a state that shows any event that is lost, doubled or out of order.
type ledger struct {
	Balances map[string]int
	Chain    uint64 // over everything, in order
	Notes    []string
	Last     string
}

// ledgers returns a model of ledgers with a snapshot after every so many decisions.
func ledgers(every int) journal.Model[ledger] {
	return journal.Model[ledger]{Version: "1", Every: every, Fold: func(l *ledger, ev journal.Recorded) error {
		if l.Balances == nil {
			l.Balances = map[string]int{}
		}
		l.Chain = l.Chain*1_099_511_628_211 + uint64(len(ev.Data)) + ev.Seq<<8 + uint64(ev.N)
		for _, b := range ev.Data {
			l.Chain = (l.Chain ^ uint64(b)) * 1_099_511_628_211
		}
		l.Last = fmt.Sprint(ev.Commit, ev.At.UnixNano())
		switch ev.Kind {
		case "moved":
			l.Balances[string(ev.Data)]++
		case "closed":
			delete(l.Balances, string(ev.Data))
		case "noted":
			l.Notes = append(l.Notes, string(ev.Data))
			if len(l.Notes) > 10 {
				l.Notes = l.Notes[1:]
			}
		default:
			return fmt.Errorf("an event of kind %q", ev.Kind)
		}
		return nil
	}}
}

// random makes a decision of a few events.
func randomDecision(random *rand.Rand) journal.Decision {
	var d journal.Decision
	for range 1 + random.IntN(4) {
		kind := []string{"moved", "closed", "noted"}[random.IntN(3)]
		d.Events = append(d.Events, journal.Event{Kind: kind, Data: fmt.Appendf(nil, "account-%d", random.IntN(12))})
	}
	if random.IntN(4) == 0 {
		d.Commands = append(d.Commands, step("", "p"))
	}
	return d
}

func load[S any](t *testing.T, r *rig, p *party, run string, m journal.Model[S]) *journal.Run[S] {
	t.Helper()
	loaded, err := journal.Load(r.ctx, p.Journal, run, m)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestLoad_EqualsReplay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	parties := []*party{r.party, r.join(t)}
	for history := range 8 {
		run := fmt.Sprint("history-", history)
		every := 1 + random.IntN(20)
		writer := load(t, r, r.party, run, ledgers(every))
		for n := range 40 + random.IntN(120) {
			switch random.IntN(20) {
			case 0: // another process takes over, from whatever is there
				writer = load(t, r, parties[random.IntN(2)], run, ledgers(every))
			case 1: // somebody else decides in between
				if _, err := load(t, r, parties[1], run, ledgers(-1)).Commit(r.ctx, randomDecision(random)); err != nil {
					t.Fatal(err)
				}
				if err := writer.Refresh(r.ctx); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := writer.Commit(r.ctx, randomDecision(random)); err != nil {
				t.Fatalf("decision %d: %v", n, err)
			}
		}
		// Without snapshots, with those that are there, and by hand: one state.
		plain := load(t, r, r.party, run, ledgers(-1))
		var byHand ledger
		fold := ledgers(-1).Fold
		n, err := r.Replay(r.ctx, run, func(ev journal.Recorded) error { return fold(&byHand, ev) })
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]*journal.Run[ledger]{
			"without snapshots": plain, "with snapshots": load(t, r, parties[1], run, ledgers(every)), "as the writer has it": writer,
		} {
			if got.Seq() != n || !reflect.DeepEqual(got.State(), byHand) {
				t.Errorf("run %s, a snapshot every %d: %s, after %d of %d decisions:\n%+v, want\n%+v", run, every, name, got.Seq(), n, got.State(), byHand)
			}
		}
		token, err := dedupe.Token(run)
		if err != nil {
			t.Fatal(err)
		}
		for slot := range 2 {
			if e, err := r.pool.Records().Read(r.ctx, kvstate.SnapshotKey(token, slot)); err != nil || len(e.Raw) == 0 {
				t.Errorf("run %s, a snapshot every %d: none in slot %d, %v", run, every, slot, err)
			}
		}
	}
	if s, err := r.Status(r.ctx); err != nil || s.DamagedSnapshots != 0 || s.MissedSnapshots != 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	r.audit(t)
}

// flip flips bits of what lies under a key of the bucket.
func (r *rig) flip(t *testing.T, key command.Token, random *rand.Rand) {
	t.Helper()
	e, err := r.pool.Records().Read(r.ctx, key)
	if err != nil || len(e.Raw) == 0 {
		t.Fatalf("nothing under %s: %v", key, err)
	}
	bad := slices.Clone(e.Raw)
	bad[random.IntN(len(bad))] ^= 1 << random.IntN(8)
	m := nats.NewMsg(r.pool.Records().Subject(key))
	m.Data = bad
	if _, err := r.js.PublishMsg(r.ctx, m); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_DamagedSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	keys := []command.Token{kvstate.SnapshotKey("a", 0), kvstate.SnapshotKey("a", 1)}
	writer := load(t, r, r.party, "a", ledgers(10))
	for range 45 {
		if _, err := writer.Commit(r.ctx, randomDecision(random)); err != nil {
			t.Fatal(err)
		}
	}
	want := load(t, r, r.party, "a", ledgers(-1)).State()
	for round := range 12 {
		damaged := round%3 + 1 // one, the other, both
		for slot, key := range keys {
			if damaged&(1<<slot) != 0 {
				r.flip(t, key, random)
			}
		}
		reader := r.join(t)
		got := load(t, r, reader, "a", ledgers(10))
		if got.Seq() != uint64(45+round) || !reflect.DeepEqual(got.State(), want) {
			t.Fatalf("round %d: %+v, want %+v", round, got.State(), want)
		}
		s, err := reader.Status(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		// After both were damaged the load replaces one at once, and meets the other again.
		if least := uint64(damaged - damaged/2); s.DamagedSnapshots < least {
			t.Errorf("round %d: %d snapshots counted as damaged, want at least %d", round, s.DamagedSnapshots, least)
		}
		// Snapshots are made again, in the place of the damaged ones.
		next := load(t, r, reader, "a", ledgers(1))
		if _, err := next.Commit(r.ctx, randomDecision(random)); err != nil {
			t.Fatal(err)
		}
		if err := next.Refresh(r.ctx); err != nil {
			t.Fatal(err)
		}
		want = next.State()
		for range 2 { // each load that finds none due leaves them as they are
			load(t, r, reader, "a", ledgers(1))
		}
		for _, key := range keys {
			r.whole1(t, reader, key)
		}
	}
}

// whole1 makes sure that a sound snapshot lies under a key, by making one if need be.
func (r *rig) whole1(t *testing.T, p *party, key command.Token) {
	t.Helper()
	before, err := p.Status(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	load(t, r, p, "a", ledgers(1))
	after, err := p.Status(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if after.DamagedSnapshots != before.DamagedSnapshots {
		t.Fatalf("the snapshot under %s was not made again", key)
	}
}

func TestLoad_SnapshotsThatDoNotBelong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	t.Run("those of another fold are not used, and no damage", func(t *testing.T) {
		first := load(t, r, r.party, "fold", total)
		for range 20 {
			if _, err := first.Commit(r.ctx, events("add 1")); err != nil {
				t.Fatal(err)
			}
		}
		other := total
		other.Version, other.Fold = "negative", func(s *sum, _ journal.Recorded) error { s.Sum--; return nil }
		if got := load(t, r, r.party, "fold", other).State(); got.Sum != -20 {
			t.Errorf("got %+v, want -20", got)
		}
		if s, err := r.Status(r.ctx); err != nil || s.DamagedSnapshots != 0 {
			t.Errorf("got %+v, %v", s, err)
		}
		if got := load(t, r, r.party, "fold", total).State(); got.Sum != 20 || got.Count != 20 {
			t.Errorf("back to the first fold: %+v, want 20", got)
		}
	})
	t.Run("those of a run that was purged and begun anew are not used", func(t *testing.T) {
		first := load(t, r, r.party, "again", total)
		for range 20 {
			if _, err := first.Commit(r.ctx, events("add 1")); err != nil {
				t.Fatal(err)
			}
		}
		stream, err := r.js.Stream(r.ctx, journal.Name("main"))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(r.ctx, purgeOf("main.journal.again")); err != nil {
			t.Fatal(err)
		}
		if err := first.Refresh(r.ctx); err == nil {
			t.Error("a run that was purged under its reader was refreshed without an error")
		}
		second := load(t, r, r.join(t), "again", total)
		for second.Seq() < 30 {
			if _, err := second.Commit(r.ctx, events("add 2")); err != nil {
				t.Fatal(err)
			}
			if got, want := load(t, r, r.party, "again", total).State(), (sum{int(second.Seq()), 2 * int(second.Seq())}); got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		}
	})
}

func TestLoad_JournalMadeAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fill := func(j *party, event string) {
		t.Helper()
		run := load(t, r, j, "a", total)
		for range 20 {
			if _, err := run.Commit(r.ctx, events(event)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(r.party, "add 1")
	// The stream is lost and made anew, the bucket with the snapshots is not. The
	// same numbers in run and stream then stand for other decisions.
	if err := r.js.DeleteStream(r.ctx, journal.Name("main")); err != nil {
		t.Fatal(err)
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(20) { // as a process would that takes no snapshots
		r.commit(t, "a", n, events("add 2"))
	}
	reader := r.join(t)
	if got, want := load(t, r, reader, "a", total).State(), (sum{20, 40}); got != want {
		t.Errorf("got %+v, want %+v: a snapshot of the lost journal was used", got, want)
	}
	if s, err := reader.Status(r.ctx); err != nil || s.DamagedSnapshots != 2 {
		t.Errorf("got %+v, %v; want both snapshots reported", s, err)
	}
}

func TestRun_AbsorbedCommitTakesInTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	d := events("add 1")
	d.ID = "outcome of x"
	late := load(t, r, r.join(t), "a", total)
	first := load(t, r, r.party, "a", total)
	if _, err := first.Commit(r.ctx, d); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Commit(r.ctx, events("add 5")); err != nil {
		t.Fatal(err)
	}
	done, err := late.Commit(r.ctx, d) // as after a crash before the answer came
	if err != nil || !done.Absorbed || done.Seq != 1 {
		t.Errorf("got %+v, %v", done, err)
	}
	if late.Seq() != 2 || late.State() != first.State() {
		t.Errorf("got %+v at %d, want %+v at 2", late.State(), late.Seq(), first.State())
	}
}

func TestRun_RefusesWhatCannotBeFolded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := load(t, r, r.party, "a", total)
	if _, err := run.Commit(r.ctx, events("add 1")); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Commit(r.ctx, events("add 1", "add nothing")); err == nil {
		t.Error("an event that the fold refuses was committed")
	}
	if got := run.State(); run.Seq() != 1 || got != (sum{1, 1}) {
		t.Errorf("the state after it: %+v at %d", got, run.Seq())
	}
	if got := r.history(t, "a"); len(got) != 1 {
		t.Errorf("it was written: %q", got)
	}
	if _, err := journal.Load(context.Background(), r.Journal, "a", journal.Model[sum]{}); err == nil {
		t.Error("a model without a fold was taken")
	}
}
