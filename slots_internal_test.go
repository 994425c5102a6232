package tallyman

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSlots_SuspectsRunAlone(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	// take asks for the next run as a goroutine that has a slot does.
	take := func(t *testing.T, s *slots, want *run, wantMore bool) {
		t.Helper()
		if got, more := s.next(patience); got != want || more != wantMore {
			t.Errorf("got %p, more %v; want %p, more %v", got, more, want, wantMore)
		}
	}
	push := func(t *testing.T, s *slots, r *run, wantStart bool) {
		t.Helper()
		if start, ok := s.push(r); start != wantStart || !ok {
			t.Errorf("push: start %v, ok %v; want %v, true", start, ok, wantStart)
		}
	}
	t.Run("after what runs has ended, and before what is ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var s slots
			s.init(3)
			a, b, c, pill := &run{}, &run{}, &run{}, &run{suspect: true}
			push(t, &s, a, true)
			take(t, &s, a, false)
			push(t, &s, pill, false)
			push(t, &s, b, false) // a slot is free, but the suspect comes first
			push(t, &s, c, false)
			take(t, &s, pill, false) // a has ended
			if s.nudge(patience) {
				t.Error("a slot was given away beside a suspect that runs alone")
			}
			take(t, &s, b, true) // the suspect is through
			take(t, &s, c, false)
		})
	})
	t.Run("beside the others once it has waited long enough", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var s slots
			s.init(2)
			a, b, pill := &run{}, &run{}, &run{suspect: true}
			push(t, &s, a, true)
			take(t, &s, a, false)
			push(t, &s, b, true)
			take(t, &s, b, false)
			push(t, &s, pill, false)
			take(t, &s, nil, false) // b has ended; a goes on
			time.Sleep(patience)
			if !s.nudge(patience) {
				t.Fatal("no slot for a suspect that has waited its time")
			}
			take(t, &s, pill, false)
		})
	})
	t.Run("what has not begun comes back at the end", func(t *testing.T) {
		var s slots
		s.init(1)
		push(t, &s, &run{}, true)
		push(t, &s, &run{suspect: true}, false)
		if got, want := len(s.close()), 2; got != want {
			t.Errorf("got %d runs back, want %d", got, want)
		}
	})
}
