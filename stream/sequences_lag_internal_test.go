package stream

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// lagging returns a stream that holds n commands, where the first reads, as
// many as times says, are answered by a replica that knows the first known alone.
func lagging(t *testing.T, n, known, times int) *Stream {
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
	write := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := js.Publish(ctx, s.Subject("default", "echo", command.Token(fmt.Sprint(i))), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	// mirror makes a copy of what is stored, and leaves it as it is then.
	mirror := func(name string, last uint64) {
		t.Helper()
		cfg := jetstream.StreamConfig{Name: name, Mirror: &jetstream.StreamSource{Name: s.name}, AllowDirect: true}
		str, err := js.CreateStream(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for str.CachedInfo().State.LastSeq < last {
			<-tick.C
			if _, err := str.Info(ctx); err != nil {
				t.Fatal(err)
			}
		}
		cfg.Mirror = nil
		if _, err := js.UpdateStream(ctx, cfg); err != nil {
			t.Fatal(err)
		}
	}
	write(0, known)
	mirror("BEHIND", uint64(known))
	write(known, n)
	mirror("WHOLE", uint64(n))

	// From now on the test answers what replicas answer.
	str, err := js.Stream(ctx, s.name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := str.CachedInfo().Config
	cfg.AllowDirect = false
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	var met atomic.Int64
	const direct = "$JS.API.DIRECT.GET."
	if _, err := nc.Subscribe(direct+s.name, func(m *nats.Msg) {
		from := "BEHIND"
		if times >= 0 && met.Add(1) > int64(times) {
			from = "WHOLE"
		}
		if err := nc.PublishRequest(direct+from, m.Reply, m.Data); err != nil {
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
