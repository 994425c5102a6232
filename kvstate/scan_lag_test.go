package kvstate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// behind plays a cluster of which one replica lags: as many consumers as
// it says are made on another server, whose bucket ends early.
type behind struct {
	jetstream.JetStream
	replica jetstream.JetStream
	times   int // how often the replica that lags is met; below 0 for ever
	met     int
}

func (b *behind) CreateConsumer(ctx context.Context, name string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if b.met == b.times {
		return b.JetStream.CreateConsumer(ctx, name, cfg)
	}
	b.met++
	return b.replica.CreateConsumer(ctx, name, cfg)
}

// leaderless plays a cluster that elects a leader: once armed, requests about the
// stream find nobody, the first times that it says; below 0 for ever.
type leaderless struct {
	jetstream.JetStream
	streams, consumers int
}

func (l *leaderless) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if l.streams != 0 {
		l.streams--
		return nil, nats.ErrNoResponders
	}
	return l.JetStream.Stream(ctx, name)
}

func (l *leaderless) CreateConsumer(ctx context.Context, name string, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if l.consumers != 0 {
		l.consumers--
		return nil, &jetstream.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}
	}
	return l.JetStream.CreateConsumer(ctx, name, cfg)
}

// TestScan_OfABucketThatNobodyLeads: an election makes a scan wait, not fail.
func TestScan_OfABucketThatNobodyLeads(t *testing.T) {
	t.Parallel()
	led := func(t *testing.T, streams, consumers int) *kvstate.Store {
		t.Helper()
		l := &leaderless{JetStream: bucketOf(t, 3)}
		s := openBucket(t, l)
		l.streams, l.consumers = streams, consumers
		return s
	}
	for _, times := range [][2]int{{2, 0}, {0, 2}, {1, 1}} {
		t.Run(fmt.Sprintf("%d and %d requests find nobody", times[0], times[1]), func(t *testing.T) {
			t.Parallel()
			visited := 0
			err := led(t, times[0], times[1]).Scan(t.Context(), func(kvstate.Entry) error { visited++; return nil })
			if err != nil || visited != 3 {
				t.Errorf("got %d visited, %v; want three", visited, err)
			}
		})
	}
	for _, times := range [][2]int{{-1, 0}, {0, -1}} {
		t.Run(fmt.Sprintf("for ever: %v", times), func(t *testing.T) {
			t.Parallel()
			s := led(t, times[0], times[1])
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if err := s.Scan(ctx, func(kvstate.Entry) error { return nil }); !errors.Is(err, kvstate.ErrUnavailable) {
				t.Errorf("got %v, want %v", err, kvstate.ErrUnavailable)
			}
		})
	}
	t.Run("an error of visit is not asked again about", func(t *testing.T) {
		t.Parallel()
		visited := 0
		err := led(t, 0, 0).Scan(t.Context(), func(kvstate.Entry) error { visited++; return nats.ErrNoResponders })
		if !errors.Is(err, nats.ErrNoResponders) || visited != 1 {
			t.Errorf("got %d visited, %v; want one and its error", visited, err)
		}
	})
}

// bucketOf starts a server with a bucket that holds records 0 to n-1, and nothing else.
func bucketOf(t *testing.T, n int) jetstream.JetStream {
	t.Helper()
	js := pooltest.JetStream(t, pooltest.Connect(t, pooltest.Server(t).URL()))
	if err := kvstate.Create(t.Context(), js, kvstate.Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	s := openBucket(t, js)
	for i := range n {
		write(t, s, &kvstate.Record{ID: fmt.Sprint(i), Kind: "echo", State: kvstate.Claimed})
	}
	return js
}

func openBucket(t *testing.T, js jetstream.JetStream) *kvstate.Store {
	t.Helper()
	pipe, err := pipeline.New(js.Conn(), pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() }) // never fails
	s, err := kvstate.Open(t.Context(), js.Conn(), js, pipe, kvstate.Config{Pool: "main"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lagging returns a bucket with records 0 to n-1, which may be read from a
// replica that knows the first known of them alone.
func lagging(t *testing.T, n, known int) (*kvstate.Store, *behind) {
	t.Helper()
	b := &behind{JetStream: bucketOf(t, n), replica: bucketOf(t, known)}
	return openBucket(t, b), b
}

// TestScan_OfAReplicaThatLags: whatever replica a scan is read from, it visits
// all that was there when it began, or says that it did not.
func TestScan_OfAReplicaThatLags(t *testing.T) {
	t.Parallel()
	for _, known := range []int{0, 1, 7, 10} {
		for _, times := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d of 10 known, met %d times", known, times), func(t *testing.T) {
				t.Parallel()
				s, b := lagging(t, 10, known)
				b.times = times
				var got []uint64
				if err := s.Scan(t.Context(), func(e kvstate.Entry) error { got = append(got, e.Revision); return nil }); err != nil {
					t.Fatal(err)
				}
				if want := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}; !slices.Equal(got, want) {
					t.Errorf("got revisions %v, want %v", got, want)
				}
			})
		}
	}
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		s, b := lagging(t, 10, 5)
		b.times = -1
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		visited := 0
		err := s.Scan(ctx, func(kvstate.Entry) error { visited++; return nil })
		if err == nil || visited != 5 {
			t.Errorf("got %d visited and %v, want five and an error", visited, err)
		}
	})
	t.Run("newest entries that are gone keep nobody waiting", func(t *testing.T) {
		t.Parallel()
		s, b := lagging(t, 10, 10)
		str, err := b.Stream(t.Context(), kvstate.StreamName("main"))
		if err != nil {
			t.Fatal(err)
		}
		if err := str.Purge(t.Context(), jetstream.WithPurgeSubject(s.Subject("9"))); err != nil {
			t.Fatal(err)
		}
		visited := 0
		if err := s.Scan(t.Context(), func(kvstate.Entry) error { visited++; return nil }); err != nil || visited != 9 {
			t.Errorf("got %d visited, %v; want nine", visited, err)
		}
	})
}
