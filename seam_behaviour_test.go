package tallyman

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// behaviours is what the worker relies on, by a sentence that says it.
func behaviours() map[string]func(*testing.T, *seam) {
	all := map[string]func(*testing.T, *seam){}
	maps.Copy(all, recordBehaviours)
	maps.Copy(all, commandBehaviours)
	maps.Copy(all, deskBehaviours)
	return all
}

var proof = command.Proof{Revision: 1}

var recordBehaviours = map[string]func(*testing.T, *seam){
	"a write over what was seen is stored": func(t *testing.T, s *seam) {
		r := claimed(t, "a")
		if e := s.read(t, "a"); e.Revision != 0 || e.Record != nil || e.Raw != nil || e.Err != nil {
			t.Errorf("got %+v before the first write", e)
		}
		first := s.write(t, r, 0)
		r.Offset = 7
		second := s.write(t, r, first)
		if e := s.read(t, "a"); second <= first || e.Revision != second || e.Record == nil || e.Record.Offset != 7 || e.Record.StoredAt.IsZero() {
			t.Errorf("got %+v after revisions %d and %d", e, first, second)
		}
	},
	"a write over anything else is refused": func(t *testing.T, s *seam) {
		first := s.write(t, claimed(t, "a"), 0)
		second := s.write(t, claimed(t, "a"), first)
		for _, over := range []uint64{0, first, second + 1} {
			if _, err := s.tryWrite(claimed(t, "a"), over); !errors.Is(err, kvstate.ErrStale) {
				t.Errorf("over revision %d: got %v, want ErrStale", over, err)
			}
		}
		if _, err := s.tryWrite(claimed(t, "b"), second); !errors.Is(err, kvstate.ErrStale) {
			t.Errorf("over nothing: got %v, want ErrStale", err)
		}
		if e := s.read(t, "a"); e.Revision != second {
			t.Errorf("revision %d is stored, want %d", e.Revision, second)
		}
	},
	"of two writes at once over one revision one is stored": func(t *testing.T, s *seam) {
		over := s.write(t, claimed(t, "a"), 0)
		outcomes := make(chan error, 2)
		for range 2 {
			r := claimed(t, "a")
			r.Revision = over
			if err := s.shards[0].records.Write("a", r, func(_ uint64, err error) { outcomes <- err }); err != nil {
				t.Fatal(err)
			}
		}
		one, other := <-outcomes, <-outcomes
		if (one == nil) == (other == nil) || !errors.Is(errors.Join(one, other), kvstate.ErrStale) {
			t.Errorf("got %v and %v, want one success and one ErrStale", one, other)
		}
	},
	"revisions rise over all keys, deletes and purges": func(t *testing.T, s *seam) {
		last := s.write(t, claimed(t, "a"), 0)
		for _, purge := range []bool{false, true} {
			if err := s.wipe("a", purge); err != nil {
				t.Fatal(err)
			}
			e := s.read(t, "a")
			if e.Revision <= last || e.Record != nil || e.Raw != nil {
				t.Errorf("purge %v: got %+v, want a marker above revision %d", purge, e, last)
			}
			if e := s.readMany(t, "a")[0]; e.Revision <= last || e.Record != nil || e.Raw != nil {
				t.Errorf("purge %v: got %+v in a batch, want a marker above revision %d", purge, e, last)
			}
			if _, err := s.tryWrite(claimed(t, "a"), 0); !errors.Is(err, kvstate.ErrStale) {
				t.Errorf("purge %v: got %v over a marker as if nothing were there, want ErrStale", purge, err)
			}
			last = s.write(t, claimed(t, "a"), e.Revision)
			if other := s.put(t, "b", "x", false); other <= last {
				t.Errorf("revision %d follows %d", other, last)
			}
		}
	},
	"a claim without a token has its revision as one": func(t *testing.T, s *seam) {
		first := s.write(t, claimed(t, "a"), 0)
		r := s.read(t, "a").Record
		if r.Token != first {
			t.Errorf("token %d, want %d", r.Token, first)
		}
		s.write(t, r, first)
		if got := s.readMany(t, "a")[0].Record.Token; got != first {
			t.Errorf("token %d after another write, want %d", got, first)
		}
	},
	"a final record expires, and nothing comes back from below": func(t *testing.T, s *seam) {
		r := claimed(t, "a")
		first := s.write(t, r, 0)
		second := s.write(t, r, first)
		done, err := r.Advance(kvstate.Completed, "w", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, done, second)
		if e := s.read(t, "a"); e.Record == nil || e.Record.State != kvstate.Completed {
			t.Errorf("got %+v, want the receipt", e)
		}
		s.until(t, "a", "the receipt to expire", func(e kvstate.Entry) bool { return e.Record == nil })
		if e := s.read(t, "a"); e.Revision != 0 {
			t.Errorf("revision %d, want 0", e.Revision)
		}
		s.write(t, claimed(t, "a"), 0)
	},
	"an entry that expires uncovers the one below it": func(t *testing.T, s *seam) {
		below := s.put(t, "_absorbed/1", "below", false)
		s.put(t, "_absorbed/1", "above", true)
		s.until(t, "_absorbed/1", "the upper one to expire", func(e kvstate.Entry) bool { return e.Revision == below && string(e.Raw) == "below" })
	},
	"many are read in the order asked for, with repeats and gaps": func(t *testing.T, s *seam) {
		b := s.write(t, claimed(t, "b"), 0)
		a := s.write(t, claimed(t, "a"), 0)
		got := s.readMany(t, "a", "none", "b", "a", "a")
		want := []kvstate.Entry{{Key: "a", Revision: a}, {Key: "none"}, {Key: "b", Revision: b}, {Key: "a", Revision: a}, {Key: "a", Revision: a}}
		if len(got) != len(want) {
			t.Fatalf("got %d entries, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i].Key != want[i].Key || got[i].Revision != want[i].Revision || (got[i].Record != nil) != (want[i].Revision > 0) {
				t.Errorf("entry %d: got %+v, want %+v", i, got[i], want[i])
			}
		}
		for _, e := range s.readMany(t, "none", "neither") {
			if e.Revision != 0 || e.Raw != nil || e.Err != nil {
				t.Errorf("got %+v, want nothing", e)
			}
		}
	},
	"two revisions are kept, and the older one can be read": func(t *testing.T, s *seam) {
		oldest := func() uint64 {
			t.Helper()
			e, err := s.shards[0].records.Oldest(s.ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			return e.Revision
		}
		if got := oldest(); got != 0 {
			t.Errorf("revision %d is the oldest of none", got)
		}
		first := s.write(t, claimed(t, "a"), 0)
		if got := oldest(); got != first {
			t.Errorf("revision %d is the oldest of one, want %d", got, first)
		}
		second := s.write(t, claimed(t, "a"), first)
		if got := oldest(); got != first {
			t.Errorf("revision %d is the oldest of two, want %d", got, first)
		}
		s.write(t, claimed(t, "a"), second)
		if got := oldest(); got != second {
			t.Errorf("revision %d is the oldest of three, want %d: two are kept", got, second)
		}
	},
	"an entry bears the state that its header names": func(t *testing.T, s *seam) {
		s.write(t, claimed(t, "a"), 0)
		s.put(t, "b", "no record", false)
		for i, e := range s.readMany(t, "a", "b") {
			if want := []kvstate.State{kvstate.Claimed, ""}[i]; e.Label != want || e.At.IsZero() {
				t.Errorf("%s: label %q at %v, want %q", e.Key, e.Label, e.At, want)
			}
		}
	},
	"a note is kept under a key of its own": func(t *testing.T, s *seam) {
		if err := s.shards[0].records.Note(s.ctx, "a", "u", &kvstate.Note{What: kvstate.NoteDropped, Worker: "w"}); err != nil {
			t.Fatal(err)
		}
		if e := s.read(t, kvstate.NoteKey("a", "u")); !strings.Contains(string(e.Raw), `"worker":"w"`) {
			t.Errorf("got %q", e.Raw)
		}
		if e := s.read(t, "a"); e.Revision != 0 {
			t.Error("a note has changed the record")
		}
	},
	"none and too many are not read": func(t *testing.T, s *seam) {
		for _, n := range []int{0, kvstate.MaxBatch + 1} {
			if err := s.shards[0].records.ReadMany(make([]command.Token, n), nil); err == nil {
				t.Errorf("%d keys were read", n)
			}
		}
	},
	"what is no record comes with its bytes and an error": func(t *testing.T, s *seam) {
		revision := s.put(t, "a", "no record", false)
		for _, e := range []kvstate.Entry{s.read(t, "a"), s.readMany(t, "a")[0]} {
			if e.Revision != revision || e.Record != nil || string(e.Raw) != "no record" || !errors.Is(e.Err, command.ErrMalformed) {
				t.Errorf("got %+v", e)
			}
		}
	},
	"a record that is too large is not sent": func(t *testing.T, s *seam) {
		r := claimed(t, "a")
		r.Checkpoint = []byte(strings.Repeat("x", s.shards[0].records.Limit()))
		if _, err := s.tryWrite(r, 0); !errors.Is(err, kvstate.ErrTooLarge) {
			t.Errorf("got %v, want ErrTooLarge", err)
		}
		if e := s.read(t, "a"); e.Revision != 0 {
			t.Errorf("revision %d is stored", e.Revision)
		}
	},
	"a probe is stored": func(t *testing.T, s *seam) {
		if err := s.shards[0].records.Probe(t.Context(), kvstate.ProbeKey("w")); err != nil {
			t.Error(err)
		}
		if e := s.read(t, kvstate.ProbeKey("w")); e.Revision == 0 {
			t.Error("the probe left no trace")
		}
	},
}

var commandBehaviours = map[string]func(*testing.T, *seam){
	"a command is delivered as it was published": func(t *testing.T, s *seam) {
		ok := s.publish(t, "a")
		before := time.Now()
		d := s.next(t, s.fetch(t), "a", 1)
		if d.Seq != ok.Sequence || d.Queue != command.DefaultQueue || d.Kind != "k" || string(d.Payload) != "payload of a" ||
			d.Header.Get(command.HeaderID) != "" || d.Header.Get(command.HeaderDigest) == "" || d.Subject() != stream.Subject(s.name, d.Queue, "k", "a") {
			t.Errorf("got %+v", d)
		}
		if d.LeaseFrom.Before(before) || d.LeaseFrom.After(time.Now()) {
			t.Errorf("the lease counts from %v", d.LeaseFrom)
		}
	},
	"a copy within the window is named as one": func(t *testing.T, s *seam) {
		first := s.publish(t, "a")
		if again := s.publish(t, "a"); !again.Repeated || again.Sequence != first.Sequence {
			t.Errorf("got %+v, want a repeat of %+v", again, first)
		}
		d := s.next(t, s.fetch(t), "a", 1)
		if err := d.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.gone(t, d.Seq)
		if again := s.publish(t, "a"); !again.Repeated || again.Sequence != first.Sequence {
			t.Errorf("after the ack: got %+v, want a repeat of %+v", again, first)
		}
	},
	"a copy is refused while the first is in the stream, whatever its message id": func(t *testing.T, s *seam) {
		if err := s.send("k", "a", "", "any"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.tryPublish("a"); !errors.Is(err, stream.ErrRepeated) {
			t.Errorf("got %v, want ErrRepeated", err)
		}
		from := s.fetch(t)
		d := s.next(t, from, "a", 1)
		if err := s.send("k", "a", "another", "any"); err == nil {
			t.Error("a copy was stored beside the first, which is out for delivery")
		}
		if err := d.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.gone(t, d.Seq)
		if err := s.send("k", "a", "", "any"); err != nil {
			t.Errorf("after the ack: %v", err)
		}
		if d := s.next(t, from, "a", 1); d.Seq != 2 {
			t.Errorf("sequence %d, want 2: refused copies take none", d.Seq)
		}
	},
	"a stored command is found by its id's token and by its sequence": func(t *testing.T, s *seam) {
		if err := s.send("other", "a", "", "any"); err != nil {
			t.Fatal(err)
		}
		found, err := s.shards[0].commands.Find(s.ctx, "a")
		if err != nil || found.Kind != "other" || found.Seq != 1 || string(found.Payload) != "any" || found.Token != "a" {
			t.Errorf("got %+v, %v", found, err)
		}
		if got, err := s.shards[0].commands.Get(s.ctx, 1); err != nil || got.Subject != found.Subject {
			t.Errorf("got %+v, %v", got, err)
		}
		if _, err := s.shards[0].commands.Find(s.ctx, "b"); !errors.Is(err, stream.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
		if _, err := s.shards[0].commands.Get(s.ctx, 2); !errors.Is(err, stream.ErrNotFound) {
			t.Errorf("got %v, want ErrNotFound", err)
		}
	},
	"a queue has the lease of the pool": func(t *testing.T, s *seam) {
		if q, err := s.shards[0].commands.Queue(s.ctx, command.DefaultQueue); err != nil || q.Lease != seamSettings.Lease {
			t.Errorf("got %+v, %v", q, err)
		}
		if _, err := s.shards[0].commands.Queue(s.ctx, "none"); !errors.Is(err, stream.ErrNoQueue) {
			t.Errorf("got %v, want ErrNoQueue", err)
		}
	},
	"an ack needs proof": func(t *testing.T, s *seam) {
		s.publish(t, "a")
		from := s.fetch(t)
		if err := s.next(t, from, "a", 1).Ack(command.Proof{}); err == nil {
			t.Error("acked without proof")
		}
		s.next(t, from, "a", 2)
	},
	"what is not acked comes again after its ack wait, and not before": func(t *testing.T, s *seam) {
		s.publish(t, "a")
		s.publish(t, "b")
		from := s.fetch(t)
		s.next(t, from, "a", 1)
		if err := s.next(t, from, "b", 1).Nak(seamSettings.Lease / 2); err != nil {
			t.Fatal(err)
		}
		s.next(t, from, "b", 2)
		s.next(t, from, "a", 2)
		s.next(t, from, "b", 3)
	},
	"a nak brings a command back at once, a delay later": func(t *testing.T, s *seam) {
		for _, id := range []string{"a", "b", "c"} {
			s.publish(t, id)
		}
		from := s.fetch(t)
		a, b, c := s.next(t, from, "a", 1), s.next(t, from, "b", 1), s.next(t, from, "c", 1)
		if err := errors.Join(a.Nak(seamSettings.Lease*2), b.Nak(seamSettings.Lease/2), c.Nak(0)); err != nil {
			t.Fatal(err)
		}
		s.next(t, from, "c", 2)
		s.publish(t, "d")
		d := s.next(t, from, "d", 1) // nothing that waits for its delay is in its way
		if err := d.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.next(t, from, "b", 2)
		s.next(t, from, "c", 3) // its ack wait, which is shorter than the delay of a
	},
	"an ack counts during the delay of a nak": func(t *testing.T, s *seam) {
		s.publish(t, "a")
		s.publish(t, "b")
		from := s.fetch(t)
		a, b := s.next(t, from, "a", 1), s.next(t, from, "b", 1)
		if err := errors.Join(a.Nak(seamSettings.Lease/4), b.Nak(seamSettings.Lease/2), a.Ack(proof)); err != nil {
			t.Fatal(err)
		}
		s.gone(t, a.Seq)
		s.next(t, from, "b", 2) // and not a
	},
	"a heartbeat starts the ack wait anew": func(t *testing.T, s *seam) {
		for _, id := range []string{"a", "b", "c"} {
			s.publish(t, id)
		}
		from := s.fetch(t)
		a := s.next(t, from, "a", 1)
		s.next(t, from, "b", 1)
		if err := s.next(t, from, "c", 1).Nak(seamSettings.Lease / 2); err != nil {
			t.Fatal(err)
		}
		c := s.next(t, from, "c", 2)
		s.extend(t, a)
		if err := c.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.next(t, from, "b", 2)
		s.next(t, from, "a", 2)
	},
	"nobody checks who answers": func(t *testing.T, s *seam) {
		s.publish(t, "a")
		from := s.fetch(t)
		first := s.next(t, from, "a", 1)
		second := s.next(t, from, "a", 2)
		s.extend(t, first) // confirmed, although the lease is the second's
		if err := first.Nak(0); err != nil {
			t.Fatal(err)
		}
		third := s.next(t, from, "a", 3)
		if err := first.Ack(proof); err != nil {
			t.Fatal(err)
		}
		s.gone(t, first.Seq)
		if err := errors.Join(second.Nak(0), third.Ack(proof)); err != nil {
			t.Errorf("answers about what is gone: %v", err)
		}
		s.extend(t, third)
		s.publish(t, "b")
		s.next(t, from, "b", 1) // and a is not back
	},
}

// extend sends a heartbeat and waits for its confirmation.
func (s *seam) extend(t *testing.T, d *stream.Delivery) {
	t.Helper()
	confirmed := make(chan error, 1)
	if err := d.Extend(func(err error) { confirmed <- err }); err != nil {
		t.Fatal(err)
	}
	if err := <-confirmed; err != nil {
		t.Fatalf("heartbeat: %v", err)
	}
}
