package journal_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/journal"
)

func TestCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	t.Run("writes events and commands together", func(t *testing.T) {
		d := events("opened a", "noted b")
		d.Commands = []tallyman.Command{step("", "x"), step("named", "y"), step("", "z")}
		done := r.commit(t, "both", 0, d)
		if done.Seq != 1 || done.ID == "" || done.Absorbed || !slices.Equal(done.Commands, []string{"both/1/1", "named", "both/1/3"}) {
			t.Errorf("got %+v", done)
		}
		done = r.commit(t, "both", 1, journal.Decision{Commands: []tallyman.Command{step("", "w")}})
		if done.Seq != 2 || !slices.Equal(done.Commands, []string{"both/2/1"}) {
			t.Errorf("got %+v", done)
		}
		if got, want := r.history(t, "both"), []string{"1.1 opened a", "1.2 noted b"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		var ids []string
		if _, err := r.History(r.ctx, "both", func(e *journal.Entry) error {
			for _, c := range e.Commands {
				ids = append(ids, fmt.Sprintf("%s %s %s %s", c.ID, c.Kind, c.Queue, c.Payload))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"both/1/1 step default x", "named step default y", "both/1/3 step default z", "both/2/1 step default w"}; !slices.Equal(ids, want) {
			t.Errorf("got %q, want %q", ids, want)
		}
	})
	t.Run("refuses what expects another place, and writes nothing", func(t *testing.T) {
		r.commit(t, "place", 0, events("a"))
		r.commit(t, "place", 1, events("b"))
		for _, expected := range []uint64{0, 1, 3, 1 << 60} {
			_, err := r.Commit(r.ctx, "place", expected, events("c"))
			if !errors.Is(err, journal.ErrConflict) || !strings.Contains(err.Error(), "it has 2 decisions") || !strings.Contains(err.Error(), `"place"`) {
				t.Errorf("expecting %d: %v, want ErrConflict", expected, err)
			}
		}
		if got, want := r.history(t, "place"), []string{"1.1 a ", "2.1 b "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("absorbs the same decision under the same commit id", func(t *testing.T) {
		d := events("a")
		d.ID, d.Commands = "outcome of x", []tallyman.Command{step("", "p")}
		first := r.commit(t, "twice", 0, d)
		again := r.commit(t, "twice", 0, d)
		if !again.Absorbed || again.StreamSeq != first.StreamSeq || again.Seq != 1 || !slices.Equal(again.Commands, first.Commands) {
			t.Errorf("got %+v after %+v", again, first)
		}
		for i := range uint64(600) { // more than a page
			r.commit(t, "twice", i+1, events("more"))
		}
		for _, p := range []*party{r.party, r.join(t)} { // one that remembers, one that does not
			again, err := p.Commit(r.ctx, "twice", 0, d)
			if err != nil || !again.Absorbed || again.StreamSeq != first.StreamSeq {
				t.Errorf("after others went on: %+v, %v", again, err)
			}
		}
		d.Events[0].Data = []byte("another")
		_, err := r.Commit(r.ctx, "twice", 0, d)
		if !errors.Is(err, journal.ErrConflict) || !strings.Contains(err.Error(), `"outcome of x" stands for another decision`) {
			t.Errorf("another decision under the same id: %v", err)
		}
		_, err = r.Commit(r.ctx, "twice", 5, d)
		if !errors.Is(err, journal.ErrConflict) {
			t.Errorf("the same id elsewhere: %v", err)
		}
	})
	t.Run("refuses what could not be relayed, before anything is written", func(t *testing.T) {
		long := strings.Repeat("k", command.MaxNameLen+1)
		for _, c := range []struct {
			name, run string
			d         journal.Decision
			want      error
		}{
			{"nothing", "r", journal.Decision{}, journal.ErrInvalid},
			{"an event without a kind", "r", journal.Decision{Events: []journal.Event{{}}}, command.ErrInvalidName},
			{"an event of a bad kind", "r", events("a.b"), command.ErrInvalidName},
			{"a command without a kind", "r", journal.Decision{Commands: []tallyman.Command{{}}}, command.ErrInvalidName},
			{"a command of a bad kind", "r", journal.Decision{Commands: []tallyman.Command{{Kind: long}}}, command.ErrInvalidName},
			{"a command with a bad id", "r", journal.Decision{Commands: []tallyman.Command{step("a\n", "")}}, command.ErrInvalidID},
			{"a command for a bad queue", "r", journal.Decision{Commands: []tallyman.Command{{Kind: "step", Queue: "*"}}}, command.ErrInvalidName},
			{"a content type with a line break", "r", journal.Decision{Commands: []tallyman.Command{{Kind: "step", ContentType: "a\r\nb"}}}, command.ErrInvalidName},
			{"two commands of one id", "r", journal.Decision{Commands: []tallyman.Command{step("a", ""), step("a", "")}}, journal.ErrInvalid},
			{"a bad commit id", "r", journal.Decision{ID: "a\x00", Events: events("a").Events}, command.ErrInvalidID},
			{"too many events", "r", journal.Decision{Events: make([]journal.Event, journal.MaxParts+1)}, journal.ErrInvalid},
			{"no run", "", events("a"), command.ErrInvalidID},
			{"a run of control characters", "a\tb", events("a"), command.ErrInvalidID},
			{"a run that is too long", strings.Repeat("r", journal.MaxRunLen+1), events("a"), journal.ErrInvalid},
			{"a command too large for the pool", "r", journal.Decision{Commands: []tallyman.Command{step("", strings.Repeat("x", 1<<20))}}, journal.ErrTooLarge},
			{"a decision too large for a message", "r", events("a " + strings.Repeat("x", r.Limit())), journal.ErrTooLarge},
			{"commands that fit one by one, but not together", "r", journal.Decision{Commands: []tallyman.Command{step("", strings.Repeat("x", 600<<10)), step("", strings.Repeat("y", 600<<10))}}, journal.ErrTooLarge},
		} {
			done, err := r.Commit(r.ctx, c.run, 0, c.d)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %+v, %.300v; want %v", c.name, done, err, c.want)
			}
			if !errors.Is(err, journal.ErrInvalid) && !errors.Is(err, journal.ErrTooLarge) {
				t.Errorf("%s: %.300v wraps neither ErrInvalid nor ErrTooLarge", c.name, err)
			}
		}
		if got := r.history(t, "r"); len(got) != 0 {
			t.Errorf("something was written: %q", got)
		}
	})
	t.Run("takes a decision that just fits", func(t *testing.T) {
		// The largest data for which Commit succeeds, and one byte more.
		low, high := 0, r.Limit()
		for low+1 < high {
			mid := (low + high) / 2
			_, err := r.Commit(r.ctx, fmt.Sprintf("fit-%d", mid), 0, events("a "+strings.Repeat("x", mid)))
			switch {
			case err == nil:
				low = mid
			case errors.Is(err, journal.ErrTooLarge):
				high = mid
			default:
				t.Fatal(err)
			}
		}
		if low < r.Limit()-1024 {
			t.Errorf("the largest event has %d bytes, the server's limit is %d", low, r.Limit())
		}
		if got := r.history(t, fmt.Sprintf("fit-%d", low)); len(got) != 1 || len(got[0]) != len("1.1 a ")+low {
			t.Errorf("the largest decision was not read back")
		}
	})
}

func TestCommit_HostileRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	// Each is a run of its own, whatever a subject, key or header makes of it.
	runs := []string{
		"a", "A", "a b", " a", "a ", "a.b", "a/b", "a//b", "a/1", "a/1/1", "*", ">", "..", "a:b", "123", "_pool", "_journal", "_mark", "=41",
		"$JS.API", "$KV.main.x", "main.journal.a", "caf\u00e9", "cafe\u0301", "\u2028", "🚢", "-flag", "%s", "'; drop", "a\"b", "a\\b",
		strings.Repeat("x", journal.MaxRunLen), strings.Repeat("é", journal.MaxRunLen/2),
	}
	to := r.producer(t)
	_, stop := relay(t, r.party, to, journal.RelayConfig{})
	ran := r.work(t)
	model := journal.Model[[]string]{Every: 1, Fold: func(s *[]string, ev journal.Recorded) error {
		*s = append(*s, string(ev.Data))
		return nil
	}}
	for i, run := range runs {
		for n := range uint64(3) {
			d := events(fmt.Sprintf("said %d-%d", i, n))
			d.Commands = []tallyman.Command{step("", fmt.Sprint(i, n))}
			d.ID = run // a commit id may be as hostile
			if n > 0 {
				d.ID = fmt.Sprint(n, run)
			}
			loaded, err := journal.Load(r.ctx, r.Journal, run, model)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := loaded.Commit(r.ctx, d); err != nil {
				t.Fatalf("run %q: %v", run, err)
			}
		}
	}
	for i, run := range runs {
		want := []string{fmt.Sprintf("%d-0", i), fmt.Sprintf("%d-1", i), fmt.Sprintf("%d-2", i)}
		var got []string
		if n, err := r.Replay(r.ctx, run, func(ev journal.Recorded) error {
			if ev.Run != run {
				return fmt.Errorf("an event of run %q", ev.Run)
			}
			got = append(got, string(ev.Data))
			return nil
		}); err != nil || n != 3 || !slices.Equal(got, want) {
			t.Errorf("run %q: %d decisions, %q, %v; want %q", run, n, got, err, want)
		}
		loaded, err := journal.Load(r.ctx, r.Journal, run, model)
		if err != nil || !slices.Equal(loaded.State(), want) {
			t.Errorf("run %q loaded: %v", run, err)
		}
	}
	r.published(t)
	for i, run := range runs {
		for n := range 3 {
			id := fmt.Sprintf("%s/%d/1", run, n+1)
			receipt, err := r.pool.Wait(r.ctx, id)
			if err != nil || string(receipt.Result) != fmt.Sprint(i, n) || ran.count(id) != 1 {
				t.Errorf("command %q: result %q, ran %d times, %v", id, receipt.Result, ran.count(id), err)
			}
		}
	}
	stop()
	if got := r.audit(t); got.Runs != uint64(len(runs)) || got.Commands != uint64(3*len(runs)) || got.UnpublishedCount != 0 {
		t.Errorf("got %+v", got)
	}
	if s, err := r.Status(r.ctx); err != nil || s.DamagedSnapshots != 0 || s.MissedSnapshots != 0 {
		t.Errorf("snapshots of one run met those of another: %+v, %v", s, err)
	}
}

func TestCommit_ConcurrentWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	parties := []*party{r.party, r.join(t), r.join(t)}
	t.Run("exactly one wins each place, and the others see the conflict", func(t *testing.T) {
		const writers, places = 9, 30
		for place := range uint64(places) {
			var wg sync.WaitGroup
			errs := make([]error, writers)
			for w := range writers {
				wg.Go(func() {
					_, errs[w] = parties[w%len(parties)].Commit(r.ctx, "one", place, events(fmt.Sprintf("by %d", w)))
				})
			}
			wg.Wait()
			winner := -1
			for w, err := range errs {
				switch {
				case err == nil && winner >= 0:
					t.Fatalf("place %d: writers %d and %d both won", place, winner, w)
				case err == nil:
					winner = w
				case !errors.Is(err, journal.ErrConflict):
					t.Fatalf("place %d, writer %d: %v, want ErrConflict", place, w, err)
				}
			}
			if winner < 0 {
				t.Fatalf("place %d: nobody won: %v", place, errs)
			}
			if got, want := r.history(t, "one")[place], fmt.Sprintf("%d.1 by %d", place+1, winner); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	})
	t.Run("Decide takes in what others decided, and loses nothing", func(t *testing.T) {
		const each = 20
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() {
				run, err := journal.Load(r.ctx, parties[w%len(parties)].Journal, "sum", total)
				if err != nil {
					t.Error(err)
					return
				}
				for range each {
					if _, err := run.Decide(r.ctx, func(s sum) (journal.Decision, error) {
						return events(fmt.Sprintf("add %d", s.Sum+1)), nil
					}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		run, err := journal.Load(r.ctx, r.Journal, "sum", total)
		if err != nil {
			t.Fatal(err)
		}
		// Each decision doubled what it saw and added one: any lost update would show.
		want := sum{}
		for range 6 * each {
			want.Count++
			want.Sum = (want.Sum + want.Sum + 1) % modulus
		}
		if got := run.State(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	r.audit(t)
}

// sum is the state of runs whose events say "add n".
type sum struct{ Count, Sum int }

const modulus = 1_000_003

var total = journal.Model[sum]{Every: 7, Fold: func(s *sum, ev journal.Recorded) error {
	var n int
	if _, err := fmt.Sscan(string(ev.Data), &n); err != nil {
		return err
	}
	s.Count++
	s.Sum = (s.Sum + n) % modulus
	return nil
}}
