package tallyman_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// TestQuestions_AreAskedAgain guards against questions to the servers that got
// lost, and waited for an answer for as long as the caller's context let them:
// here JetStream is played, and leaves the first one of a sort unanswered.
func TestQuestions_AreAskedAgain(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), ConfigFile: writeFile(t, "server.conf",
		`accounts { PLAYED: { users: [ {user: u, password: p} ], mappings: { "$JS.API.>": "played.>" } } }`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	ctx := pooltest.Context(t)
	url := strings.Replace(s.URL(), "://", "://u:p@", 1)
	var mu sync.Mutex
	lost := map[string]bool{} // by sort and stream
	lose := false
	if _, err := connect(t, url).Subscribe("played.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if sort := strings.Join(strings.Split(m.Subject, ".")[:4], "."); lose && !lost[sort] {
			lost[sort] = true
			return
		}
		answer := `{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}`
		if at, ok := strings.CutPrefix(m.Subject, "played.STREAM.INFO."); ok {
			answer = `{"config":{"name":"` + at + `","retention":"workqueue","max_msgs_per_subject":2},"state":{"last_seq":7}}`
		}
		_ = m.Respond([]byte(answer)) // whoever asked notices
	}); err != nil {
		t.Fatal(err)
	}
	asks := map[string]func(ctx context.Context, s *stream.Stream, b *kvstate.Store) error{
		"state of a stream": func(ctx context.Context, s *stream.Stream, _ *kvstate.Store) error {
			_, err := s.State(ctx)
			return err
		},
		"queues": func(ctx context.Context, s *stream.Stream, _ *kvstate.Store) error {
			if _, err := s.Queues(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
				return errors.Join(errors.New("want what JetStream says"), err)
			}
			return nil
		},
		"queue": func(ctx context.Context, s *stream.Stream, _ *kvstate.Store) error {
			if _, err := s.Queue(ctx, "default"); !errors.Is(err, stream.ErrNoQueue) {
				return errors.Join(errors.New("want ErrNoQueue"), err)
			}
			return nil
		},
		"pause": func(ctx context.Context, s *stream.Stream, _ *kvstate.Store) error {
			if err := s.Pause(ctx, "default", time.Now()); !errors.Is(err, stream.ErrNoQueue) {
				return errors.Join(errors.New("want ErrNoQueue"), err)
			}
			return nil
		},
		"commands by queue": func(ctx context.Context, s *stream.Stream, _ *kvstate.Store) error {
			_, err := s.CountByQueue(ctx)
			return err
		},
		"newest revision": func(ctx context.Context, _ *stream.Stream, b *kvstate.Store) error {
			_, err := b.LastRevision(ctx)
			return err
		},
		"scan": func(ctx context.Context, _ *stream.Stream, b *kvstate.Store) error {
			if err := b.Scan(ctx, func(kvstate.Entry) error { return nil }); err == nil || errors.Is(err, context.DeadlineExceeded) {
				return errors.Join(errors.New("want what JetStream says"), err)
			}
			return nil
		},
	}
	nc := connect(t, url)
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() }) // returns nil
	js := pooltest.JetStream(t, nc)
	begin := make(chan struct{})
	var asking sync.WaitGroup
	for name, ask := range asks { // at once, since each waits for a while
		pool := strings.ReplaceAll(name, " ", "-")
		commands, err := stream.Open(ctx, nc, js, pipe, pool)
		if err != nil {
			t.Fatal(err)
		}
		records, err := kvstate.Open(ctx, nc, js, pipe, kvstate.Config{Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		asking.Go(func() {
			<-begin
			if err := ask(ctx, commands, records); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	mu.Lock()
	lose = true
	mu.Unlock()
	close(begin)
	asking.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(lost) < len(asks) {
		t.Errorf("lost were %v, want a question of each", lost)
	}
}
