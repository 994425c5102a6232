package audit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	pooltest.SideBySide(4)
	goleak.VerifyTestMain(m)
}

// scene is a server with a pool, and the raw access of someone who tampers.
type scene struct {
	*tallyman.Pool
	nc *nats.Conn
	js jetstream.JetStream
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return newSceneWith(t, tallyman.Settings{})
}

func newSceneWith(t *testing.T, settings tallyman.Settings) *scene {
	t.Helper()
	return newSceneOn(t, pooltest.Server(t), settings)
}

// newSceneOn opens the pool on a server, and makes it if there is none.
func newSceneOn(t *testing.T, s *embedded.Server, settings tallyman.Settings) *scene {
	t.Helper()
	nc := pooltest.Connect(t, s.URL())
	return &scene{pooltest.Create(t, nc, settings, tallyman.Topology{}), nc, pooltest.JetStream(t, nc)}
}

func (s *scene) submit(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if _, err := s.Submit(t.Context(), tallyman.Command{ID: fmt.Sprintf("c-%d", i), Kind: "echo"}); err != nil {
			t.Fatal(err)
		}
	}
}

// work runs a worker until every command up to number n has its outcome and the stream is empty.
func (s *scene) work(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	life, stop := context.WithCancel(ctx)
	w, err := s.NewWorker(tallyman.WorkerConfig{Mux: echo()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- w.Run(life) }()
	for i := 1; i <= n; i++ {
		if _, err := s.Wait(ctx, fmt.Sprintf("c-%d", i)); err != nil && !errors.Is(err, tallyman.ErrParked) {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// The server has every ack by now, and takes a moment to act on it.
	for i := 1; i <= n; i++ {
		token := command.Token(fmt.Sprintf("c-%d", i))
		pooltest.Await(t, ctx, "ack of "+string(token), func() bool {
			_, err := s.Commands().Find(ctx, token)
			return errors.Is(err, stream.ErrNotFound)
		})
	}
}

func echo() *tallyman.Mux {
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if c.ID() == "c-2" {
			return tallyman.Result{}, tallyman.Reject(errors.New("never"))
		}
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	return mux
}

func (s *scene) audit(t *testing.T, opts audit.Options) audit.Report {
	t.Helper()
	r, err := audit.Run(t.Context(), s.Commands(), s.Records(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *scene) commands(t *testing.T) jetstream.Stream {
	t.Helper()
	str, err := s.js.Stream(t.Context(), stream.Name("main"))
	if err != nil {
		t.Fatal(err)
	}
	return str
}

// remove takes a record out of the bucket, as an operator with the nats CLI might.
func (s *scene) remove(t *testing.T, key string) {
	t.Helper()
	kv, err := s.js.KeyValue(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Purge(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) write(t *testing.T, r *kvstate.Record) {
	t.Helper()
	if _, err := s.Records().WriteWait(t.Context(), command.Token(r.ID), r); err != nil {
		t.Fatal(err)
	}
}

func TestRun_Balanced(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	if got := s.audit(t, audit.Options{}); !got.Balanced || got.LastSeq != 0 {
		t.Errorf("of an empty pool: got %+v, want balanced", got)
	}
	s.submit(t, 1, 10)
	s.work(t, 10)
	s.submit(t, 11, 15)
	got := s.audit(t, audit.Options{})
	if !got.Balanced || got.LastSeq != 15 || got.Completed != 9 || got.Parked != 1 || got.Pending != 5 {
		t.Errorf("got %+v, want 9 completed, 1 parked, 5 pending of 15, balanced", got)
	}
	if want := "the books balance: all 15 sequences are accounted for"; got.Summary() != want {
		t.Errorf("got summary %q, want %q", got.Summary(), want)
	}
}

func TestReport_Summary(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]audit.Report{
		"the books balance: all 0 sequences are accounted for":                              {Balanced: true},
		"the books balance: the only sequence is accounted for, and all 2 ids of the list":  {Balanced: true, LastSeq: 1, Compared: 2},
		"the books balance: all 2 sequences are accounted for, and the only id of the list": {Balanced: true, LastSeq: 2, Compared: 1},
		"the books do not balance: 1 of 1 id of the list missing":                           {MissingIDCount: 1, Compared: 1},
	} {
		if got := r.Summary(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRun_WhileWorkersRun(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n = 3000
	life, stop := context.WithCancel(t.Context())
	w, err := s.NewWorker(tallyman.WorkerConfig{Mux: echo()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() { done <- w.Run(life) }()
	submitted := make(chan struct{})
	go func() {
		defer close(submitted)
		p := s.NewProducer(tallyman.ProducerConfig{})
		done <- p.SubmitMany(t.Context(), func(yield func(tallyman.Command) bool) {
			for i := 1; i <= n; i++ {
				if !yield(tallyman.Command{ID: fmt.Sprintf("c-%d", i), Kind: "echo"}) {
					return
				}
			}
		}, func(_ int, _ tallyman.Submission, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		_ = p.Close(t.Context())
	}()
	for audits := 0; ; audits++ {
		if got := s.audit(t, audit.Options{}); !got.Balanced {
			t.Errorf("audit %d under load: %s: %+v", audits, got.Summary(), got)
		}
		select {
		case <-submitted:
			s.waitFor(t, n)
			stop()
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if got := s.audit(t, audit.Options{}); !got.Balanced || got.Completed+got.Parked != n {
				t.Errorf("at the end: got %+v, want %d with an outcome", got, n)
			}
			return
		default:
		}
	}
}

func (s *scene) waitFor(t *testing.T, n int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		if _, err := s.Wait(t.Context(), fmt.Sprintf("c-%d", i)); err != nil && !errors.Is(err, tallyman.ErrParked) {
			t.Fatal(err)
		}
	}
}

func TestRun_Missing(t *testing.T) {
	t.Parallel()
	t.Run("a command was removed from the stream by hand", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 5)
		if err := s.commands(t).DeleteMsg(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if got, want := s.audit(t, audit.Options{}), []uint64{3}; got.Balanced || !slices.Equal(got.Missing, want) || got.MissingCount != 1 {
			t.Errorf("got %+v, want sequence 3 missing", got)
		}
	})
	t.Run("the stream was purged", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 1100)
		if err := s.commands(t).Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := s.audit(t, audit.Options{})
		if got.MissingCount != 1100 || len(got.Missing) != audit.ListLimit || got.Balanced {
			t.Errorf("got %d missing, %d listed, balanced %v; want 1100, %d, false", got.MissingCount, len(got.Missing), got.Balanced, audit.ListLimit)
		}
	})
	t.Run("a receipt was removed", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 4)
		s.work(t, 4)
		s.remove(t, "c-4")
		if got, want := s.audit(t, audit.Options{}), []uint64{4}; got.Balanced || !slices.Equal(got.Missing, want) {
			t.Errorf("got %+v, want sequence 4 missing", got)
		}
	})
	t.Run("a command in work was removed from the stream", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 2)
		s.write(t, &kvstate.Record{ID: "c-1", Kind: "echo", State: kvstate.Claimed, Seqs: []uint64{1}})
		s.write(t, &kvstate.Record{ID: "c-2", Kind: "echo", State: kvstate.Claimed, Seqs: []uint64{2}})
		if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		got := s.audit(t, audit.Options{})
		if got.Balanced || !slices.Equal(got.Stranded, []string{"c-1"}) || !slices.Equal(got.Missing, []uint64{1}) {
			t.Errorf("got %+v, want c-1 stranded and sequence 1 missing", got)
		}
		if want := "the books do not balance: 1 missing, 1 stranded"; got.Summary() != want {
			t.Errorf("got summary %q, want %q", got.Summary(), want)
		}
	})
	t.Run("a copy under another sequence keeps a record from being stranded", func(t *testing.T) {
		t.Parallel()
		s := newScene(t)
		s.submit(t, 1, 1)
		if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		s.write(t, &kvstate.Record{ID: "c-2", Kind: "echo", Digest: dedupe.Digest("echo", nil), State: kvstate.Requeued, Seqs: []uint64{1}})
		if _, err := s.js.Publish(t.Context(), s.Commands().Subject("default", "echo", "c-2"), nil); err != nil {
			t.Fatal(err)
		}
		if got := s.audit(t, audit.Options{}); !got.Balanced || got.Pending != 1 {
			t.Errorf("got %+v, want balanced, 1 pending", got)
		}
	})
}

func TestRun_Doubled(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 2)
	s.write(t, &kvstate.Record{ID: "a", Kind: "echo", State: kvstate.Completed, Seqs: []uint64{1, 2}})
	s.write(t, &kvstate.Record{ID: "b", Kind: "echo", State: kvstate.Completed, Seqs: []uint64{2}})
	got := s.audit(t, audit.Options{})
	if got.Balanced || got.DoubledCount != 1 || got.Doubled[0].Seq != 2 {
		t.Fatalf("got %+v, want sequence 2 doubled", got)
	}
	if ids, want := slices.Sorted(slices.Values(got.Doubled[0].IDs)), []string{"a", "b"}; !slices.Equal(ids, want) {
		t.Errorf("got ids %v, want %v", ids, want)
	}
}

func TestRun_Corrupt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 1)
	kv, err := s.js.KeyValue(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "c-1", []byte("no record")); err != nil {
		t.Fatal(err)
	}
	if got := s.audit(t, audit.Options{}); got.Balanced || !slices.Equal(got.Corrupt, []string{"c-1"}) || got.Pending != 1 {
		t.Errorf("got %+v, want c-1 corrupt", got)
	}
}
