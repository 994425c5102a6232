package kvstate_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/kvstate"
)

// matrix is the whole transition table once more, as a picture: a row per
// state a record is in, a column per state it may go to.
const matrix = `
          claimed prepared waiting completed parked requeued cancelled discarded
none      x       x        x       x         x      .        x         .
claimed   x       x        x       x         x      .        x         .
prepared  x       x        x       x         x      .        x         .
waiting   x       x        x       .         x      .        x         .
requeued  x       .        x       .         x      x        x         .
parked    .       .        .       x         .      x        .         x
completed .       .        .       .         .      .        .         .
cancelled .       .        .       .         .      .        .         .
discarded .       .        .       .         .      .        .         .
`

func TestCheck_Matrix(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSpace(matrix), "\n")
	columns := strings.Fields(lines[0])
	if got, want := len(columns), len(kvstate.States()); got != want {
		t.Fatalf("the picture has %d columns, there are %d states", got, want)
	}
	if got, want := len(lines)-1, len(kvstate.States())+1; got != want {
		t.Fatalf("the picture has %d rows, want %d", got, want)
	}
	for _, line := range lines[1:] {
		cells := strings.Fields(line)
		from := kvstate.State(cells[0])
		if cells[0] == "none" {
			from = kvstate.None
		}
		var want []kvstate.State
		for i, cell := range cells[1:] {
			to := kvstate.State(columns[i])
			err := kvstate.Check(from, to)
			if legal := cell == "x"; legal != (err == nil) {
				t.Errorf("Check(%s, %s) = %v, want legal: %v", cells[0], to, err, legal)
			}
			if err == nil {
				want = append(want, to)
				continue
			}
			if !errors.Is(err, kvstate.ErrIllegalTransition) || !strings.Contains(err.Error(), cells[0]) || !strings.Contains(err.Error(), columns[i]) {
				t.Errorf("Check(%s, %s) = %v, want ErrIllegalTransition that names both", cells[0], to, err)
			}
		}
		got := from.Next()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s.Next() = %v, want %v", cells[0], got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	t.Run("nothing leads back to no record", func(t *testing.T) {
		t.Parallel()
		for _, from := range append(kvstate.States(), kvstate.None) {
			if err := kvstate.Check(from, kvstate.None); !errors.Is(err, kvstate.ErrIllegalTransition) {
				t.Errorf("Check(%q, none) = %v, want ErrIllegalTransition", from, err)
			}
		}
	})
	t.Run("an unknown state leads nowhere and nothing leads to it", func(t *testing.T) {
		t.Parallel()
		for _, s := range append(kvstate.States(), kvstate.None) {
			if kvstate.Check(s, "paused") == nil || kvstate.Check("paused", s) == nil {
				t.Errorf("a transition between %q and an unknown state is legal", s)
			}
		}
	})
	t.Run("every state is reachable from no record", func(t *testing.T) {
		t.Parallel()
		reached := map[kvstate.State]bool{}
		for todo := []kvstate.State{kvstate.None}; len(todo) > 0; todo = todo[1:] {
			for _, s := range todo[0].Next() {
				if !reached[s] {
					reached[s] = true
					todo = append(todo, s)
				}
			}
		}
		for _, s := range kvstate.States() {
			if !reached[s] {
				t.Errorf("%s cannot be reached", s)
			}
		}
		if got, want := len(reached), len(kvstate.States()); got != want {
			t.Errorf("%d states are reachable, States lists %d", got, want)
		}
	})
	t.Run("what Next returns is the caller's own", func(t *testing.T) {
		t.Parallel()
		next := kvstate.Parked.Next()
		clear(next)
		if slices.Contains(kvstate.Parked.Next(), kvstate.None) {
			t.Error("the transition table can be changed from outside")
		}
	})
}

func TestState(t *testing.T) {
	t.Parallel()
	final := []kvstate.State{kvstate.Completed, kvstate.Cancelled, kvstate.Discarded}
	for _, s := range kvstate.States() {
		if got, want := s.Final(), slices.Contains(final, s); got != want {
			t.Errorf("%s.Final() = %v, want %v", s, got, want)
		}
		if got, want := s.Final(), len(s.Next()) == 0; got != want {
			t.Errorf("%s.Final() = %v, but its successors are %v", s, got, s.Next())
		}
		if got, want := s.Terminal(), s.Final() || s == kvstate.Parked; got != want {
			t.Errorf("%s.Terminal() = %v, want %v", s, got, want)
		}
		if !s.Known() {
			t.Errorf("%s is not known", s)
		}
	}
	for _, s := range []kvstate.State{kvstate.None, "paused", "Completed"} {
		if s.Known() || s.Final() || s.Terminal() {
			t.Errorf("%q: known %v, final %v, terminal %v, want none of it", s, s.Known(), s.Final(), s.Terminal())
		}
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	reasons := kvstate.Reasons()
	slices.Sort(reasons)
	want := []kvstate.Reason{"conflict", "corrupt", "exhausted", "expired", "malformed", "rejected", "uncertain", "unknown_kind"}
	if !slices.Equal(reasons, want) {
		t.Errorf("got %v, want %v", reasons, want)
	}
}
