package stream_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/stream"
)

func TestStream_RemoveAndRepublish(t *testing.T) {
	t.Parallel()
	s, _ := newStream(t, stream.Config{Lease: 30 * time.Second})
	env := command.Envelope{Command: command.Command{ID: "a", Kind: "k", Queue: "default", ContentType: "text/plain"}, Token: "a", Digest: "d"}
	republish := func() (stream.Accepted, error) {
		t.Helper()
		type answer struct {
			ok  stream.Accepted
			err error
		}
		answers := make(chan answer, 1)
		if err := s.Republish(env, func(ok stream.Accepted, err error) { answers <- answer{ok, err} }); err != nil {
			t.Fatal(err)
		}
		a := <-answers
		return a.ok, a.err
	}
	if err := publish(t, s, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := republish(); !errors.Is(err, stream.ErrRepeated) {
		t.Errorf("while a copy is there: got %v, want %v", err, stream.ErrRepeated)
	}
	for range 2 { // gone is gone
		if err := s.Remove(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(t.Context(), 99); err != nil {
		t.Errorf("a sequence that is yet to come: %v", err)
	}
	if _, err := s.Occupant(t.Context(), env); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("got %v, want nothing there", err)
	}
	// The server still remembers the message id of the first copy.
	if err := publish(t, s, "a"); err != nil {
		t.Fatal(err)
	}
	if st, err := s.State(t.Context()); err != nil || st.Messages != 0 {
		t.Fatalf("got %+v, %v: the second Publish was to be swallowed, else this tests nothing", st, err)
	}
	if ok, err := republish(); err != nil || ok.Repeated || ok.Sequence != 2 {
		t.Errorf("got %+v, %v, want sequence 2", ok, err)
	}
	got, err := s.Occupant(t.Context(), env)
	if err != nil || got.Seq != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	for name, want := range map[string]string{
		command.HeaderMsgID: "", command.HeaderID: "", command.HeaderDigest: "d", command.HeaderContentType: "text/plain",
	} {
		if got := got.Header.Get(name); got != want {
			t.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
}
