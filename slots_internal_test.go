package tallyman

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSlots_SuspectsRunAlone(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	// take asks for the next run as a goroutine that has a slot does: the one that
	// is on its way, if there is one.
	take := func(t *testing.T, s *slots, want *run, wantMore bool) {
		t.Helper()
		if got, more := s.next(patience, s.coming); got != want || more != wantMore {
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
			s.init(3, time.Minute)
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
			s.init(2, time.Minute)
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
		s.init(1, time.Minute)
		push(t, &s, &run{}, true)
		push(t, &s, &run{suspect: true}, false)
		if got, want := len(s.close()), 2; got != want {
			t.Errorf("got %d runs back, want %d", got, want)
		}
	})
}

func TestSlots_OneGoroutineIsOnItsWay(t *testing.T) {
	t.Parallel()
	var s slots
	s.init(3, time.Minute)
	runs := make([]*run, 6)
	for i := range runs {
		runs[i] = &run{}
		if start, ok := s.push(runs[i]); start != (i == 0) || !ok {
			t.Fatalf("push %d: start %v, ok %v; want a start for the first alone", i, start, ok)
		}
	}
	for i, step := range []struct {
		came, more bool
		running    int
	}{
		{true, true, 2},   // the first comes, and starts the second
		{false, false, 2}, // it is through before the second has come
		{true, true, 3},   // the second comes, and starts the third
		{true, false, 3},  // all slots are taken
		{false, false, 3},
	} {
		if got, more := s.next(time.Minute, step.came); got != runs[i] || more != step.more {
			t.Errorf("step %d: got run %v, more %v; want more %v", i, got == runs[i], more, step.more)
		}
		if _, running := s.counts(); running != step.running {
			t.Errorf("step %d: %d slots are taken, want %d", i, running, step.running)
		}
	}
	// The last one is left to whoever is through next: a blocked handler holds nothing up.
	if got, more := s.next(time.Minute, false); got != runs[5] || more {
		t.Errorf("got the last run %v, more %v", got == runs[5], more)
	}
	for range 3 {
		if got, _ := s.next(time.Minute, false); got != nil {
			t.Error("got a run out of nothing")
		}
	}
	if start, _ := s.push(&run{}); !start {
		t.Error("nobody is started once all slots are free again")
	}
}

// TestSlots_Want follows how many deliveries a worker of 100 slots may ask for.
func TestSlots_Want(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s slots
		s.init(100, time.Minute)
		want := func(when string, n int) {
			t.Helper()
			if got, brief := s.want(); got != n || brief != (n+int(s.held.Load()) > 100+maxAhead) {
				t.Errorf("%s: wants %d, brief %v; want %d", when, got, brief, n)
			}
		}
		// goThrough has n handlers return within d.
		goThrough := func(n int, d time.Duration) {
			for range n {
				s.ran(time.Microsecond)
			}
			time.Sleep(d)
		}
		want("before the first handler has returned", 100)
		s.ran(time.Second)
		want("with handlers of a second", 100)
		s.take(5000)
		for range 5000 { // dropped, say
			s.finish()
		}
		time.Sleep(fastTime)
		s.spell.Store(int64(time.Millisecond))
		want("with handlers of a millisecond", 100+800)
		s.spell.Store(int64(time.Microsecond))
		want("with handlers of a microsecond, and nothing done yet", 100+maxAhead)
		time.Sleep(fastTime) // from now on there is one before
		s.want()
		goThrough(500, fastTime)
		want("when it got through little", 100+maxAhead)
		goThrough(2500, fastTime)
		want("when it got through more", 100+2500)
		goThrough(5000, 2*fastTime)
		want("when it got through as much, in twice the time and twice as many", 100+2500)
		goThrough(20_000, fastTime)
		want("when it got through very much", 100+fastAhead)
		s.take(1000)
		want("with 1,000 of them held", 100+fastAhead-1000)
		s.take(2*fastAhead - 1000)
		if got := s.free(); got > 0 {
			t.Errorf("with more held than that: wants %d more", got)
		}
		for range 2 * fastAhead {
			s.finish()
		}
		s.spell.Store(int64(time.Second))
		want("as soon as handlers are slow again", 100)
		s.spell.Store(int64(time.Microsecond))
		time.Sleep(time.Minute)
		want("after a while without work", 100+maxAhead)
		s.close()
		want("when it drains", 0)

		var short slots // leases, of which a fastTime would be most
		short.init(100, 200*time.Millisecond)
		short.want()
		for range 2000 {
			short.ran(time.Microsecond)
		}
		time.Sleep(25 * time.Millisecond)
		if got := short.free(); got != 100+2000 {
			t.Errorf("with short leases: wants %d, want what it got through in 25 ms", got)
		}
	})
}
