package stream

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// replica is a server with a stream of its own.
type replica struct {
	*Stream
	stored int
}

func newReplica(t *testing.T) *replica {
	t.Helper()
	ctx := t.Context()
	srv, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	nc, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() }) // never fails
	if err := Create(ctx, js, Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, nc, js, pipe, "main")
	if err != nil {
		t.Fatal(err)
	}
	return &replica{Stream: s}
}

// grow stores commands until there are n.
func (r *replica) grow(t *testing.T, n int) {
	t.Helper()
	for ; r.stored < n; r.stored++ {
		if _, err := r.js.Publish(t.Context(), r.Subject("default", "echo", command.Token(fmt.Sprint(r.stored))), nil); err != nil {
			t.Error(err)
			return
		}
	}
}

// lagging returns a stream that holds n commands. Direct gets are answered by a
// replica that knows the first known alone, and has caught up once it was asked as
// many times as times says; below 0 means never.
func lagging(t *testing.T, n, known, times int) *Stream {
	t.Helper()
	leader, other := newReplica(t), newReplica(t)
	leader.grow(t, n)
	other.grow(t, known)
	str, err := leader.js.Stream(t.Context(), leader.name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := str.CachedInfo().Config
	cfg.AllowDirect = false // the test answers in its place
	if _, err := leader.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	met := 0
	if _, err := leader.nc.Subscribe("$JS.API.DIRECT.GET."+leader.name, func(m *nats.Msg) {
		if met++; times >= 0 && met > times {
			other.grow(t, n)
		}
		inbox := other.nc.NewInbox()
		_, err := other.nc.Subscribe(inbox, func(a *nats.Msg) {
			if err := leader.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: a.Header, Data: a.Data}); err != nil {
				t.Error(err)
			}
		})
		if err == nil {
			err = other.nc.PublishRequest(m.Subject, inbox, m.Data)
		}
		if err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	return leader.Stream
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
