package stream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/stream"
)

// lagging returns a stream that holds n commands. Direct gets are answered by a
// replica that knows the first known alone, and has caught up once it was asked as
// many times as times says; below 0 means never.
func lagging(t *testing.T, n, known, times int) *stream.Stream {
	t.Helper()
	s, leader := newStream(t, stream.Config{})
	_, replica := newStream(t, stream.Config{})
	grow := func(js jetstream.JetStream, from, to int) {
		for i := from; i < to; i++ {
			if _, err := js.Publish(t.Context(), s.Subject("default", "echo", command.Token(fmt.Sprint(i))), nil); err != nil {
				t.Error(err)
				return
			}
		}
	}
	grow(leader, 0, n)
	grow(replica, 0, known)
	str, err := leader.Stream(t.Context(), s.Name())
	if err != nil {
		t.Fatal(err)
	}
	cfg := str.CachedInfo().Config
	cfg.AllowDirect = false // the test answers in its place
	if _, err := leader.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	met := 0
	if _, err := leader.Conn().Subscribe("$JS.API.DIRECT.GET."+s.Name(), func(m *nats.Msg) {
		if met++; times >= 0 && met > times {
			grow(replica, known, n)
			known = n
		}
		inbox := replica.Conn().NewInbox()
		_, err := replica.Conn().Subscribe(inbox, func(a *nats.Msg) {
			if err := leader.Conn().PublishMsg(&nats.Msg{Subject: m.Reply, Header: a.Header, Data: a.Data}); err != nil {
				t.Error(err)
			}
		})
		if err == nil {
			err = replica.Conn().PublishRequest(m.Subject, inbox, m.Data)
		}
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSequences_OfAReplicaThatLags: whichever replica answers, the walk visits
// all that is there, or says that it did not.
func TestSequences_OfAReplicaThatLags(t *testing.T) {
	t.Parallel()
	for _, known := range []int{1, 7, 10} {
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d of 10 known, met %d times", known, times), func(t *testing.T) {
				t.Parallel()
				s := lagging(t, 10, known, times)
				var got []uint64
				if err := s.Sequences(t.Context(), 9, func(seq uint64, _ string) error { got = append(got, seq); return nil }); err != nil {
					t.Fatal(err)
				}
				if want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
					t.Errorf("got sequences %v, want %v", got, want)
				}
			})
		}
	}
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		s := lagging(t, 10, 5, -1)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		visited := 0
		err := s.Sequences(ctx, 10, func(uint64, string) error { visited++; return nil })
		if err == nil || visited != 5 {
			t.Errorf("got %d visited and %v, want five and an error", visited, err)
		}
	})
}
