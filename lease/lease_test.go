package lease

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const wait = 30 * time.Second

// keep runs a keeper inside a synctest bubble.
func keep(t *testing.T, beat func([]*Lease)) *Keeper {
	t.Helper()
	k := NewKeeper(Terms{Wait: wait}, beat)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// told is a holder that is only told of the end.
type told func(error)

func (f told) LeaseLost(cause error) { f(cause) }

func hold(k *Keeper, start time.Time, lost func(error)) *Lease {
	l := new(Lease)
	k.HoldIn(l, told(lost), start)
	return l
}

func kept(k *Keeper) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l := k.head; l != nil; l = l.next {
		n++
	}
	return n
}

func TestLease_Trust(t *testing.T) {
	t.Run("ends a margin before the ack wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var lost error
			var at time.Time
			k := keep(t, func([]*Lease) {})
			start := time.Now()
			l := hold(k, start, func(err error) { lost, at = err, time.Now() })
			time.Sleep(27*time.Second - 1)
			if !l.Held() {
				t.Error("not held just before the end of trust")
			}
			time.Sleep(1)
			if l.Held() {
				t.Error("held at the end of trust, before any tick has told")
			}
			time.Sleep(wait / 20)
			synctest.Wait()
			if !errors.Is(lost, ErrLost) {
				t.Errorf("lost for %v, want ErrLost", lost)
			}
			if got := at.Sub(start); got >= wait {
				t.Errorf("told after %v, want before the ack wait of %v", got, wait)
			}
			k.Release(l)
		})
	})
	t.Run("counts from the start of a heartbeat, not from its confirmation", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t, func(due []*Lease) {
				start := time.Now()
				for _, l := range due {
					go func() { time.Sleep(8 * time.Second); l.Confirm(start) }() // a slow network
				}
			})
			l := hold(k, time.Now(), func(error) {})
			time.Sleep(10*time.Second + wait/20) // the heartbeat has been sent
			sent := time.Now()
			time.Sleep(9 * time.Second)
			synctest.Wait()
			l.mu.Lock()
			got := l.start
			l.mu.Unlock()
			if got.After(sent) {
				t.Errorf("trust counts from %v, which is after the heartbeat was sent (%v)", got, sent)
			}
			k.Release(l)
			time.Sleep(wait)
		})
	})
	t.Run("a confirmation after the loss changes nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t, func([]*Lease) {})
			l := hold(k, time.Now(), func(error) {})
			time.Sleep(wait)
			l.Confirm(time.Now())
			if l.Held() {
				t.Error("a lost lease came back")
			}
			k.Release(l)
		})
	})
	t.Run("a confirmation after the end of trust changes nothing, though nobody has noticed the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := NewKeeper(Terms{Wait: wait}, func([]*Lease) {}) // which does not run, so no tick tells
			l := hold(k, time.Now(), func(error) {})
			time.Sleep(10 * time.Second)
			sent := time.Now()
			time.Sleep(17 * time.Second)
			if l.Confirm(sent); l.Held() {
				t.Error("a lease that could not be relied on any more came back")
			}
		})
	})
	t.Run("an older heartbeat that is confirmed late takes no trust back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := NewKeeper(Terms{Wait: wait}, func([]*Lease) {})
			l := hold(k, time.Now(), func(error) {})
			time.Sleep(10 * time.Second)
			older := time.Now()
			time.Sleep(10 * time.Second)
			l.Confirm(time.Now())
			l.Confirm(older)
			time.Sleep(20 * time.Second)
			if !l.Held() {
				t.Error("the lease is counted from the older one")
			}
		})
	})
	t.Run("a delivery that lay in a buffer through a freeze is never held", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := NewKeeper(Terms{Wait: wait}, func([]*Lease) {})
			pulled := time.Now()
			time.Sleep(2 * wait) // frozen, the delivery in the socket's buffer
			if l := hold(k, pulled, func(error) {}); l.Held() {
				t.Error("held a lease that ran out before it was seen")
			}
		})
	})
}

func TestLease_Heartbeat(t *testing.T) {
	t.Run("none before a third, then repeated until confirmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var beats []time.Duration
			start := time.Now()
			k := keep(t, func([]*Lease) { beats = append(beats, time.Since(start)) })
			l := hold(k, start, func(error) {})
			time.Sleep(26 * time.Second)
			synctest.Wait()
			k.Release(l)
			if len(beats) != 4 { // at 10, 15, 20 and 25 s, each at the next tick
				t.Fatalf("beats at %v, want 4 of them", beats)
			}
			if beats[0] < 10*time.Second || beats[0] > 11*time.Second {
				t.Errorf("first beat after %v, want 10s to 11s", beats[0])
			}
		})
	})
	t.Run("keeps a lease for as long as it is confirmed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t, func(due []*Lease) {
				for _, l := range due {
					l.Confirm(time.Now())
				}
			})
			l := hold(k, time.Now(), func(err error) { t.Errorf("lost: %v", err) })
			time.Sleep(10 * wait)
			if !l.Held() {
				t.Error("not held after ten times the ack wait")
			}
			k.Release(l)
		})
	})
	t.Run("stops with the release", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t, func([]*Lease) { t.Error("a beat for a released lease") })
			a := hold(k, time.Now(), func(error) { t.Error("lost after release") })
			b := hold(k, time.Now(), func(error) { t.Error("lost after release") })
			c := hold(k, time.Now(), func(error) { t.Error("lost after release") })
			for i, l := range []*Lease{b, a, c} {
				if !k.Release(l) {
					t.Error("released a lease that was not in force")
				}
				if got, want := kept(k), 2-i; got != want {
					t.Errorf("%d leases kept, want %d", got, want)
				}
			}
			if k.Release(a) {
				t.Error("a second release found the lease in force")
			}
			time.Sleep(2 * wait)
		})
	})
	t.Run("those that are not confirmed are counted, from the last that was", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var missed []int
			var silent atomic.Bool
			var lost error
			k := keep(t, func(due []*Lease) {
				missed = append(missed, due[0].Lapse().Missed)
				if !silent.Load() {
					due[0].Confirm(time.Now())
				}
			})
			l := hold(k, time.Now(), func(err error) { lost = err })
			time.Sleep(12 * time.Second) // one beat, confirmed
			synctest.Wait()
			if got := l.Lapse().Missed; got != 0 {
				t.Errorf("%d heartbeats missed after a confirmation, want none", got)
			}
			silent.Store(true)
			time.Sleep(2 * wait)
			synctest.Wait()
			var lapse *Lapse
			if !errors.As(lost, &lapse) || !errors.Is(lost, ErrLost) {
				t.Fatalf("lost for %v, want a Lapse that is ErrLost", lost)
			}
			if want := []int{1, 1, 2, 3, 4}; !slices.Equal(missed, want) || lapse.Missed != 4 {
				t.Errorf("missed %v and %d at the end, want %v and 4", missed, lapse.Missed, want)
			}
			if lapse.Silence != 27*time.Second || lapse.Noticed.Before(lapse.Ended) || lapse.Noticed.Sub(lapse.Ended) > wait/20 {
				t.Errorf("got %+v, want a silence of 27s that was noticed within a tick", lapse)
			}
			k.Release(l)
		})
	})
	t.Run("lose tells the holder once, with the cause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cause := errors.New("someone else has it")
			var got []error
			k := keep(t, func([]*Lease) {})
			l := hold(k, time.Now(), func(err error) { got = append(got, err) })
			l.Lose(cause)
			l.Lose(ErrLost)
			time.Sleep(2 * wait)
			synctest.Wait()
			if len(got) != 1 || !errors.Is(got[0], cause) {
				t.Errorf("told %v, want once %v", got, cause)
			}
			k.Release(l)
		})
	})
}

func TestLease_HeldAt(t *testing.T) {
	t.Parallel()
	start := time.Now()
	end := Terms{Wait: wait}.Trust(start)
	for _, c := range []struct {
		name  string
		at    time.Time
		after func(*Keeper, *Lease)
		want  bool
	}{
		{"at its start", start, nil, true},
		{"just before the end of trust", end.Add(-1), nil, true},
		{"at the end of trust", end, nil, false},
		{"after the end of trust", end.Add(time.Hour), nil, false},
		{"after it was lost", start, func(_ *Keeper, l *Lease) { l.Lose(ErrLost) }, false},
		{"after its release", start, func(k *Keeper, l *Lease) { k.Release(l) }, false},
		{"at the end of what was confirmed first", end, func(_ *Keeper, l *Lease) { l.Confirm(start.Add(1)) }, true},
		{"at the end of what was confirmed last", end.Add(1), func(_ *Keeper, l *Lease) { l.Confirm(start.Add(1)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := NewKeeper(Terms{Wait: wait}, func([]*Lease) {})
			l := hold(k, start, func(error) {})
			if c.after != nil {
				c.after(k, l)
			}
			if got := l.HeldAt(c.at); got != c.want {
				t.Errorf("held: %v, want %v", got, c.want)
			}
		})
	}
}

// named is a holder that can be told from others.
type named struct{ name string }

func (*named) LeaseLost(error) {}

func TestKeeper_Holders(t *testing.T) {
	t.Parallel()
	k := NewKeeper(Terms{Wait: wait}, func([]*Lease) {})
	want := func(when string, names ...string) {
		t.Helper()
		got := []string{}
		for _, h := range k.Holders() {
			got = append(got, h.(*named).name)
		}
		slices.Sort(got)
		if !slices.Equal(got, names) {
			t.Errorf("%s: got %q, want %q", when, got, names)
		}
	}
	var a, b, c Lease
	want("before the first")
	k.HoldIn(&a, &named{"a"}, time.Now())
	k.HoldIn(&b, &named{"b"}, time.Now())
	k.HoldIn(&c, &named{"c"}, time.Now().Add(-wait)) // ran out in a buffer
	want("with three", "a", "b", "c")
	b.Lose(ErrLost)
	want("with one lost, whose holder may still be at work", "a", "b", "c")
	k.Release(&b)
	want("with the lost one released", "a", "c")
	k.Release(&a)
	want("with two released", "c")
	k.Release(&b)
	want("with one released twice", "c")
	k.Release(&c)
	want("with all released")
}
