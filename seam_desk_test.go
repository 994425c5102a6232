package tallyman

import (
	"errors"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// deskBehaviours is what the acts of an operator rely on.
var deskBehaviours = map[string]func(*testing.T, *seam){
	"what is sent back is stored within the window of its message id": func(t *testing.T, s *seam) {
		env, err := envelope("a")
		if err != nil {
			t.Fatal(err)
		}
		s.publish(t, "a")
		from := s.fetch(t)
		d := s.next(t, from, "a", 1)
		if err := d.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.gone(t, d.Seq)
		if _, err := s.hand.commands.Occupant(s.ctx, env); !errors.Is(err, stream.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound: its subject is free", err)
		}
		again, err := accepted(s.hand.commands.Republish, env)
		if err != nil || again.Repeated || again.Sequence != 2 {
			t.Errorf("got %+v, %v; want sequence 2", again, err)
		}
		if _, err := accepted(s.hand.commands.Republish, env); !errors.Is(err, stream.ErrRepeated) {
			t.Errorf("got %v for a copy, want ErrRepeated", err)
		}
		if got, err := s.hand.commands.Occupant(s.ctx, env); err != nil || got.Seq != 2 {
			t.Errorf("sequence %d occupies its subject, %v; want 2", got.Seq, err)
		}
		s.next(t, from, "a", 1)
		for range 2 { // taking out what is gone does nothing
			if err := s.hand.commands.Remove(s.ctx, 2); err != nil {
				t.Error(err)
			}
		}
		s.gone(t, 2)
	},
	"a scan visits the newest entry of each key, in order, and no markers": func(t *testing.T, s *seam) {
		first := s.write(t, claimed(t, "a"), 0)
		s.write(t, claimed(t, "b"), 0)
		s.write(t, claimed(t, "gone"), 0)
		if err := s.wipe("gone", false); err != nil {
			t.Fatal(err)
		}
		second := s.write(t, claimed(t, "a"), first)
		if last, err := s.hand.records.LastRevision(s.ctx); err != nil || last != second {
			t.Errorf("last revision %d, %v; want %d", last, err, second)
		}
		var keys []string
		err := s.hand.records.Scan(s.ctx, func(e kvstate.Entry) error {
			if !kvstate.Own(e.Key) {
				keys = append(keys, string(e.Key))
			}
			return nil
		})
		if got, want := strings.Join(keys, " "), "b a"; err != nil || got != want {
			t.Errorf("visited %q, %v; want %q", got, err, want)
		}
	},
	"an entry of the pool's own is removed only as it was seen": func(t *testing.T, s *seam) {
		first := s.put(t, kvstate.PayloadKey("a"), "one", false)
		second := s.put(t, kvstate.PayloadKey("a"), "two", false)
		if err := s.hand.records.Remove(s.ctx, kvstate.PayloadKey("a"), first); !errors.Is(err, kvstate.ErrStale) {
			t.Errorf("got %v, want ErrStale", err)
		}
		if err := s.hand.records.Remove(s.ctx, kvstate.PayloadKey("a"), second); err != nil {
			t.Error(err)
		}
		if e := s.read(t, kvstate.PayloadKey("a")); e.Raw != nil {
			t.Errorf("%q is left", e.Raw)
		}
	},
}
