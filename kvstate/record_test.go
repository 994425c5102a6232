package kvstate_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestRecord_Advance(t *testing.T) {
	t.Parallel()
	at := time.Unix(1785500000, 0)
	t.Run("adds a step and leaves the old record as it was", func(t *testing.T) {
		t.Parallel()
		old := &kvstate.Record{ID: "a", State: kvstate.Claimed, Owner: "w1", Token: 7, Revision: 9,
			Trail: make([]kvstate.Step, 1, 8)}
		next, err := old.Advance(kvstate.Parked, "w2", "why", at)
		if err != nil {
			t.Fatal(err)
		}
		want := kvstate.Step{At: at, State: kvstate.Parked, Owner: "w2", Token: 7, Note: "why"}
		if next.State != kvstate.Parked || next.Owner != "w2" || len(next.Trail) != 2 || next.Trail[1] != want || next.Revision != 9 {
			t.Errorf("got %+v", next)
		}
		if old.State != kvstate.Claimed || old.Owner != "w1" || len(old.Trail) != 1 {
			t.Errorf("the old record is now %+v", old)
		}
		other, err := old.Advance(kvstate.Completed, "w3", "", at)
		if err != nil {
			t.Fatal(err)
		}
		if next.Trail[1] != want || other.Trail[1].Owner != "w3" {
			t.Error("two successors of one record share their trail")
		}
	})
	t.Run("keeps the last steps and no more than the limit", func(t *testing.T) {
		t.Parallel()
		r := &kvstate.Record{ID: "a"}
		for i := range 3 * kvstate.MaxTrail {
			var err error
			if r, err = r.Advance(kvstate.Claimed, "w", fmt.Sprint(i), at); err != nil {
				t.Fatal(err)
			}
			if got, want := len(r.Trail), min(i+1, kvstate.MaxTrail); got != want {
				t.Fatalf("after %d steps the trail has %d, want %d", i+1, got, want)
			}
			for k, s := range r.Trail {
				if got, want := s.Note, fmt.Sprint(i+1-len(r.Trail)+k); got != want {
					t.Fatalf("after %d steps, step %d of the trail is %s, want %s", i+1, k, got, want)
				}
			}
		}
	})
	t.Run("cuts a trail that came too long", func(t *testing.T) {
		t.Parallel()
		r := &kvstate.Record{ID: "a", State: kvstate.Claimed, Trail: make([]kvstate.Step, 100)}
		next, err := r.Advance(kvstate.Completed, "w", "", at)
		if err != nil || len(next.Trail) != kvstate.MaxTrail || next.Trail[kvstate.MaxTrail-1].State != kvstate.Completed {
			t.Errorf("got %d steps, %v", len(next.Trail), err)
		}
	})
	t.Run("carries the command only to states that are a human's business", func(t *testing.T) {
		t.Parallel()
		for from, next := range map[kvstate.State][]kvstate.State{
			kvstate.Parked:   kvstate.Parked.Next(),
			kvstate.Requeued: kvstate.Requeued.Next(),
		} {
			for _, to := range next {
				r, err := (&kvstate.Record{ID: "a", State: from, Command: &command.Command{ID: "a"}}).Advance(to, "w", "", at)
				if err != nil {
					t.Fatal(err)
				}
				want := to == kvstate.Requeued || to == kvstate.Discarded || to == kvstate.Parked
				if got := r.Command != nil; got != want {
					t.Errorf("from %s to %s: it holds its command: %v, want %v", from, to, got, want)
				}
			}
		}
	})
	t.Run("refuses what the table does not hold", func(t *testing.T) {
		t.Parallel()
		for _, from := range append(kvstate.States(), kvstate.None) {
			for _, to := range append(kvstate.States(), kvstate.None) {
				r := &kvstate.Record{ID: "a", State: from}
				next, err := r.Advance(to, "w", "", at)
				if legal := kvstate.Check(from, to) == nil; legal != (err == nil) || legal != (next != nil) {
					t.Errorf("Advance from %q to %q = %v, %v, but Check says legal: %v", from, to, next, err, legal)
				}
				if err != nil && !errors.Is(err, kvstate.ErrIllegalTransition) {
					t.Errorf("Advance from %q to %q: %v, want ErrIllegalTransition", from, to, err)
				}
			}
		}
	})
}

func TestRecord_AddSeq(t *testing.T) {
	t.Parallel()
	r := &kvstate.Record{}
	for _, seq := range []uint64{3, 0, 5, 3, 5} {
		r.AddSeq(seq)
	}
	if want := []uint64{3, 5}; !slices.Equal(r.Seqs, want) {
		t.Errorf("got %v, want %v", r.Seqs, want)
	}
	if !r.Accounts(3) || !r.Accounts(5) || r.Accounts(4) || r.Accounts(0) {
		t.Errorf("it accounts for 3: %v, 5: %v, 4: %v, 0: %v", r.Accounts(3), r.Accounts(5), r.Accounts(4), r.Accounts(0))
	}
	a, b := *r, *r
	a.AddSeq(8)
	b.AddSeq(9)
	if !slices.Equal(a.Seqs, []uint64{3, 5, 8}) || !slices.Equal(b.Seqs, []uint64{3, 5, 9}) {
		t.Errorf("two copies share their sequences: %v and %v", a.Seqs, b.Seqs)
	}
}

// TestRecord_AdvanceIn is not parallel: what it looks at after its release may be
// in use by then.
func TestRecord_AdvanceIn(t *testing.T) { //nolint:paralleltest // see above
	at := time.Unix(1785500000, 0)
	fresh := kvstate.Record{ID: "a", Kind: "k", Queue: "default", Digest: "d", Seqs: []uint64{1}, Revision: 3, Token: 5}
	full := fresh
	full.ID, full.Checkpoint, full.Intent, full.ContentType, full.ResolvedBy, full.Error = "b", []byte("c"), []byte("i"), "t", "p", "e"
	full.Command, full.NextAt, full.Attempt, full.Offset, full.Reason = &command.Command{ID: "b"}, at, 7, 8, kvstate.ReasonExpired
	full.Extra, full.StoredAt = []kvstate.Field{{Name: "new"}}, at
	trail := full
	trail.State, trail.Trail = kvstate.Claimed, []kvstate.Step{{At: at, State: kvstate.Claimed, Owner: "before"}}
	illegal := fresh
	illegal.State = kvstate.Completed
	t.Run("makes what Advance makes", func(t *testing.T) {
		for _, c := range []struct {
			name string
			from kvstate.Record
			to   kvstate.State
		}{
			{"of a fresh one", fresh, kvstate.Completed},
			{"of a full one", full, kvstate.Completed},
			{"of a fresh one after a full one", fresh, kvstate.Completed},
			{"of a full one that keeps its command", full, kvstate.Parked},
			{"of one with a trail", trail, kvstate.Completed},
			{"of one that may not go there", illegal, kvstate.Claimed},
		} {
			room, from := kvstate.NewRoom(), c.from
			got, gotErr := from.AdvanceIn(room, c.to, "w", "why", at)
			want, wantErr := c.from.Advance(c.to, "w", "why", at)
			if !reflect.DeepEqual(got, want) || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
				t.Errorf("%s: got %+v, %v; want %+v, %v", c.name, got, gotErr, want, wantErr)
			}
			by := c.from // what both should make
			by.State, by.Owner = c.to, "w"
			by.Trail = append(slices.Clone(by.Trail), kvstate.Step{At: at, State: c.to, Owner: "w", Token: 5, Note: "why"})
			if c.to != kvstate.Parked {
				by.Command = nil
			}
			if gotErr == nil && !reflect.DeepEqual(*got, by) {
				t.Errorf("%s: got %+v, want %+v", c.name, got, by)
			}
			if !reflect.DeepEqual(from, c.from) {
				t.Errorf("%s: the old record is now %+v", c.name, from)
			}
			room.Release()
		}
	})
	t.Run("takes the room unless there is a trail", func(t *testing.T) {
		room := kvstate.NewRoom()
		first, err := fresh.AdvanceIn(room, kvstate.Completed, "w", "", at)
		if err != nil {
			t.Fatal(err)
		}
		as := *first
		if other, err := trail.AdvanceIn(room, kvstate.Completed, "w", "", at); err != nil || other == first {
			t.Errorf("got %p, %v; want another one than %p, which is in the room", other, err, first)
		}
		if !reflect.DeepEqual(*first, as) || first.Trail[0].Owner != "w" {
			t.Errorf("one with a trail has changed what is in the room: %+v", first)
		}
		if other, err := fresh.AdvanceIn(room, kvstate.Completed, "w", "", at); err != nil || other != first {
			t.Errorf("got %p, %v; want it in the room, at %p", other, err, first)
		}
		room.Release()
	})
	t.Run("leaves nothing in the room once that is released", func(t *testing.T) {
		room := kvstate.NewRoom()
		made, err := full.AdvanceIn(room, kvstate.Parked, "w", "why", at)
		if err != nil {
			t.Fatal(err)
		}
		made.Result, made.FollowUps = []byte("r"), make([]command.Command, 1)
		steps := made.Trail
		room.Release()
		if !reflect.DeepEqual(*made, kvstate.Record{}) || steps[0] != (kvstate.Step{}) {
			t.Errorf("got %+v with %+v, want nothing", made, steps)
		}
	})
}
