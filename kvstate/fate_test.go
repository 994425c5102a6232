package kvstate_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestStore_Fates(t *testing.T) {
	store, _ := newStore(t, tallyman.Settings{})
	seq := uint64(0)
	var asked []kvstate.Lying
	var names []string
	want := map[string]kvstate.Fate{}
	// record stores the record of an id, which accounts for sequence seq.
	record := func(key command.Token, accounts bool, followUps int, states ...kvstate.State) {
		t.Helper()
		r := &kvstate.Record{ID: string(key), Kind: "k", Queue: "q", Digest: "d"}
		for _, s := range states {
			next, err := r.Advance(s, "w", "", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			r = next
		}
		if accounts {
			r.Seqs = []uint64{seq}
		}
		for i := range followUps {
			r.FollowUps = append(r.FollowUps, tallyman.Command{ID: fmt.Sprint(i), Kind: "k"})
		}
		if _, err := store.WriteWait(t.Context(), key, r); err != nil {
			t.Fatal(err)
		}
	}
	put := func(key command.Token) {
		t.Helper()
		if err := store.PutWait(t.Context(), key, []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		file func(key command.Token)
		want kvstate.Fate
	}{
		{"nothing", func(command.Token) {}, kvstate.Fate{}},
		{"at work", func(k command.Token) { record(k, true, 0, kvstate.Claimed) }, kvstate.Fate{}},
		{"waiting", func(k command.Token) { record(k, true, 0, kvstate.Waiting) }, kvstate.Fate{}},
		{"completed", func(k command.Token) { record(k, true, 0, kvstate.Completed) }, kvstate.Fate{Accounted: true, Over: true}},
		{"completed with follow-ups", func(k command.Token) { record(k, true, 2, kvstate.Completed) }, kvstate.Fate{Accounted: true, Receipt: &kvstate.Record{}}},
		{"completed by another copy", func(k command.Token) { record(k, false, 0, kvstate.Completed) }, kvstate.Fate{}},
		{"absorbed", func(k command.Token) { record(k, false, 0, kvstate.Completed); put(kvstate.AbsorbedKey(seq)) }, kvstate.Fate{Accounted: true, Over: true}},
		{"absorbed beside one at work", func(k command.Token) { record(k, false, 0, kvstate.Claimed); put(kvstate.AbsorbedKey(seq)) }, kvstate.Fate{Accounted: true}},
		{"cancelled", func(k command.Token) { record(k, true, 0, kvstate.Cancelled) }, kvstate.Fate{Accounted: true, Over: true}},
		{"parked", func(k command.Token) { record(k, true, 0, kvstate.Parked) }, kvstate.Fate{Accounted: true}},
		{"sent back", func(k command.Token) { record(k, true, 0, kvstate.Parked, kvstate.Requeued) }, kvstate.Fate{Accounted: true}},
		{"the new copy of what was sent back", func(k command.Token) { record(k, false, 0, kvstate.Parked, kvstate.Requeued) }, kvstate.Fate{}},
		{"parked as malformed", func(command.Token) { put(kvstate.MalformedKey(seq)) }, kvstate.Fate{Accounted: true, Over: true}},
		{"parked as a conflict", func(k command.Token) { record(k, false, 0, kvstate.Claimed); put(kvstate.ConflictKey(seq)) }, kvstate.Fate{Accounted: true, Over: true}},
		{"damaged", func(k command.Token) { put(k) }, kvstate.Fate{}},
	} {
		for range 20 { // more than one batch in all
			seq++
			key := command.Token(fmt.Sprintf("c%d", seq))
			c.file(key)
			asked, names = append(asked, kvstate.Lying{Seq: seq, Token: key}), append(names, c.name)
		}
		want[c.name] = c.want
	}
	same := func(got, want kvstate.Fate) bool {
		return got.Accounted == want.Accounted && got.Over == want.Over && (got.Receipt != nil) == (want.Receipt != nil)
	}
	fates, err := store.Fates(t.Context(), asked)
	if err != nil || len(fates) != len(asked) {
		t.Fatalf("got %d fates, %v, want %d", len(fates), err, len(asked))
	}
	for i, got := range fates {
		if !same(got, want[names[i]]) {
			t.Errorf("%s: got %+v, want %+v", names[i], got, want[names[i]])
		}
		if i%20 == 0 {
			if got, err := store.FateOf(t.Context(), asked[i]); err != nil || !same(got, want[names[i]]) {
				t.Errorf("%s, asked of the leader: got %+v, %v, want %+v", names[i], got, err, want[names[i]])
			}
		}
	}
	if fates, err := store.Fates(t.Context(), nil); err != nil || len(fates) != 0 {
		t.Errorf("of none: got %v, %v", fates, err)
	}
}
