package kvstate_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestStore_Remove(t *testing.T) {
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{}, tallyman.Topology{})
	s, key := p.Records(), kvstate.PayloadKey("a")
	put := func(value string) uint64 {
		t.Helper()
		type answer struct {
			revision uint64
			err      error
		}
		answers := make(chan answer, 1)
		if err := s.Put(key, []byte(value), false, func(revision uint64, err error) { answers <- answer{revision, err} }); err != nil {
			t.Fatal(err)
		}
		a := <-answers
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.revision
	}
	read := func() string {
		t.Helper()
		e, err := s.Read(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return string(e.Raw)
	}
	old := put("old")
	last := put("new")
	if got, err := s.LastRevision(t.Context()); err != nil || got != last {
		t.Errorf("last revision: got %d, %v, want %d", got, err, last)
	}
	if err := s.Remove(t.Context(), key, old); !errors.Is(err, kvstate.ErrStale) || read() != "new" {
		t.Errorf("over an older revision: got %v and %q, want %v and the entry untouched", err, read(), kvstate.ErrStale)
	}
	if err := s.Remove(t.Context(), key, last); err != nil || read() != "" {
		t.Errorf("got %v and %q, want it gone", err, read())
	}
	if put("again"); read() != "again" {
		t.Errorf("got %q, want the entry stored anew", read())
	}
	seen := 0
	if err := s.Scan(t.Context(), func(e kvstate.Entry) error {
		if e.Key == key {
			seen++
		}
		return nil
	}); err != nil || seen != 1 {
		t.Errorf("a scan met it %d times, %v, want once", seen, err)
	}
	if err := s.Remove(t.Context(), "a", 0); err == nil {
		t.Error("the record of a command was removed")
	}
}

// Markers come by themselves: a scan leaves out just what Markers hands out.
func TestStore_Markers(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t, tallyman.Settings{})
	for _, key := range []command.Token{kvstate.PauseKey("a"), kvstate.PauseKey("b")} {
		if err := store.PutWait(t.Context(), key, []byte("{}"), 0); err != nil {
			t.Fatal(err)
		}
	}
	e, err := store.Read(t.Context(), kvstate.PauseKey("b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Remove(t.Context(), e.Key, e.Revision); err != nil {
		t.Fatal(err)
	}
	seen := func(scan func(context.Context, func(kvstate.Entry) error) error) (keys []command.Token) {
		t.Helper()
		if err := scan(t.Context(), func(e kvstate.Entry) error {
			keys = append(keys, e.Key)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return keys
	}
	if got, want := seen(store.Markers), []command.Token{"_pause/b"}; !slices.Equal(got, want) {
		t.Errorf("markers: got %v, want %v", got, want)
	}
	if got, want := seen(store.Scan), []command.Token{kvstate.KeySettings, "_pause/a"}; !slices.Equal(got, want) {
		t.Errorf("entries: got %v, want %v", got, want)
	}
}

func TestCorruptOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[command.Token]command.Token{
		kvstate.CorruptKey("a", 7): "a", kvstate.CorruptKey("a/1", 12): "a/1", kvstate.CorruptKey(kvstate.ConflictKey(3), 5): "_conflict/3",
		"a": "", kvstate.AbsorbedKey(3): "",
	} {
		if got, ok := kvstate.CorruptOf(key); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", key, got, ok, want)
		}
	}
}
