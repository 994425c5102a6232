package stream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/stream"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newStream starts a server with the command stream of a pool.
func newStream(t *testing.T, cfg stream.Config) (*stream.Stream, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(pooltest.Server(t).URL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := pooltest.JetStream(t, nc)
	cfg.Pool = "main"
	if err := stream.Create(t.Context(), js, cfg); err != nil {
		t.Fatal(err)
	}
	return openStream(t, js, pipeline.Config{}), js
}

// openStream opens the command stream of pool "main".
func openStream(t *testing.T, js jetstream.JetStream, cfg pipeline.Config) *stream.Stream {
	t.Helper()
	pipe, err := pipeline.New(js.Conn(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() }) // never fails
	s, err := stream.Open(t.Context(), js.Conn(), js, pipe, "main")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publish(t *testing.T, s *stream.Stream, id string) error {
	t.Helper()
	env := command.Envelope{Command: command.Command{ID: id, Kind: "k", Queue: "default"}, Token: command.Token(id), Digest: "d"}
	answers := make(chan error, 1)
	if err := s.Publish(env, func(_ stream.Accepted, err error) { answers <- err }); err != nil {
		return err
	}
	return <-answers
}

// inbox collects what a fetcher delivers and says.
type inbox struct {
	mu      sync.Mutex
	want    int
	got     []*stream.Delivery
	notices []string
}

func (b *inbox) wanted() (most int, brief bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.want, false
}

func (b *inbox) deliver(batch []*stream.Delivery) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, batch...)
	b.want -= len(batch)
}

func (b *inbox) notice(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notices = append(b.notices, fmt.Sprint(err))
}

func (b *inbox) state() (got int, notices []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got), append([]string(nil), b.notices...)
}

// fetch runs a fetcher until the test ends.
func fetch(t *testing.T, s *stream.Stream, b *inbox, wake chan struct{}) *stream.Fetcher {
	t.Helper()
	f := s.NewFetcher(stream.FetchConfig{
		Queue: "default", Expires: 200 * time.Millisecond, Want: b.wanted, Wake: wake, Deliver: b.deliver, Notice: b.notice,
	})
	pooltest.Run(t, f.Run)
	return f
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestFetcher_TakesNoMoreThanWanted(t *testing.T) {
	t.Parallel()
	s, _ := newStream(t, stream.Config{Lease: 30 * time.Second})
	for i := range 20 {
		if err := publish(t, s, fmt.Sprint("c-", i)); err != nil {
			t.Fatal(err)
		}
	}
	b, wake := &inbox{want: 3}, make(chan struct{}, 1)
	f := fetch(t, s, b, wake)
	outstanding := func() int {
		q, err := s.Queue(t.Context(), "default")
		if err != nil {
			t.Fatal(err)
		}
		return q.Outstanding
	}
	eventually(t, "three deliveries", func() bool { n, _ := b.state(); return n == 3 })
	if got := outstanding(); got != 3 {
		t.Errorf("the server has handed out %d, want 3", got)
	}
	b.mu.Lock()
	b.want = 4
	b.mu.Unlock()
	wake <- struct{}{}
	eventually(t, "four more", func() bool { n, _ := b.state(); return n == 7 })
	if got := outstanding(); got != 7 {
		t.Errorf("the server has handed out %d, want 7", got)
	}
	if f.Alive().IsZero() {
		t.Error("no sign of life after deliveries")
	}
	for _, d := range b.got {
		if d.LeaseFrom.IsZero() || time.Since(d.LeaseFrom) < 0 {
			t.Errorf("sequence %d: lease from %v", d.Seq, d.LeaseFrom)
		}
	}
}

func TestFetcher_LargeCommands(t *testing.T) {
	t.Parallel()
	const many, size, huge = 48, 1_000_000, 18 << 20
	dir := t.TempDir()
	// A command that a server with a larger max_payload took is larger than the
	// bound of a pull.
	big, err := embedded.Start(embedded.Config{Dir: dir, MaxPayload: 20 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(big.Close)
	nc, err := nats.Connect(big.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Create(t.Context(), js, stream.Config{Pool: "main", Lease: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for i := range many + 1 {
		n := size
		if i == many/2 {
			n = huge
		}
		if _, err := js.Publish(t.Context(), fmt.Sprintf("main.commands.default.k.%d", i), make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	nc.Close()
	big.Close()

	server, err := embedded.Start(embedded.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err = nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := openStream(t, pooltest.JetStream(t, nc), pipeline.Config{})
	pulls, err := nc.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT.>")
	if err != nil {
		t.Fatal(err)
	}
	b := &inbox{want: many + 1}
	fetch(t, s, b, make(chan struct{}))
	eventually(t, "all commands to arrive", func() bool { got, _ := b.state(); return got == many+1 })
	if _, notices := b.state(); len(notices) > 0 {
		t.Errorf("got %v, want no complaint", notices)
	}
	whole := 0
	for {
		m, err := pulls.NextMsg(10 * time.Millisecond)
		if err != nil {
			break
		}
		var asked struct {
			Batch    int `json:"batch"`
			MaxBytes int `json:"max_bytes"`
		}
		if err := json.Unmarshal(m.Data, &asked); err != nil {
			t.Fatal(err)
		}
		if asked.MaxBytes == 0 {
			whole++
		}
		if asked.MaxBytes == 0 && asked.Batch != 1 || asked.MaxBytes > 16<<20 {
			t.Errorf("a pull asks for %s, want one command or at most 16 MiB", m.Data)
		}
	}
	if whole == 0 {
		t.Error("no pull asks for the command that is larger than the bound")
	}
}

// A worker that was busy for long asked for nothing, and was called not ready as
// soon as it had a free slot again.
func TestFetcher_IsAliveWhenItAsksAfterALongTime(t *testing.T) {
	t.Parallel()
	s, _ := newStream(t, stream.Config{Lease: 30 * time.Second})
	if err := publish(t, s, "c"); err != nil {
		t.Fatal(err)
	}
	b, wake := &inbox{want: 1}, make(chan struct{}, 1)
	f := s.NewFetcher(stream.FetchConfig{Queue: "default", Expires: time.Hour, Want: b.wanted, Wake: wake, Deliver: b.deliver})
	pooltest.Run(t, f.Run)
	eventually(t, "the delivery", func() bool { n, _ := b.state(); return n == 1 })
	free := time.Now()
	b.mu.Lock()
	b.want = 1
	b.mu.Unlock()
	wake <- struct{}{}
	eventually(t, "a sign of life without an answer", func() bool { return f.Alive().After(free) })
}

func TestFetcher_SurvivesItsConsumer(t *testing.T) {
	t.Parallel()
	s, js := newStream(t, stream.Config{Lease: 30 * time.Second})
	b := &inbox{want: 10}
	f := fetch(t, s, b, nil)
	eventually(t, "a first answer", func() bool { return !f.Alive().IsZero() })
	if err := js.DeleteConsumer(t.Context(), "main_commands", "default"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "word of the missing queue", func() bool {
		_, notices := b.state()
		return len(notices) > 0 && strings.Contains(notices[len(notices)-1], "tallyman init --pool main --queue default")
	})
	if err := publish(t, s, "c-1"); err != nil {
		t.Fatal(err)
	}
	if err := stream.Create(t.Context(), js, stream.Config{Pool: "main", Lease: 30 * time.Second}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the delivery", func() bool { n, _ := b.state(); return n == 1 })
	if _, notices := b.state(); notices[len(notices)-1] != "<nil>" {
		t.Errorf("last notice is %q, want word that it works again", notices[len(notices)-1])
	}
}

func TestStream_RefusesCopiesAndOverflow(t *testing.T) {
	t.Parallel()
	s, _ := newStream(t, stream.Config{Lease: 30 * time.Second, MaxMsgs: 2})
	if err := publish(t, s, "a"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Find(t.Context(), "a"); err != nil || got.Seq != 1 || got.Kind != "k" || got.Queue != "default" {
		t.Errorf("find: %+v, %v", got, err)
	}
	if _, err := s.Find(t.Context(), "b"); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("find what is not there: %v, want ErrNotFound", err)
	}
	if err := publish(t, s, "b"); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, s, "c"); !errors.Is(err, stream.ErrFull) {
		t.Errorf("publish beyond the limit: %v, want ErrFull", err)
	}
	env := command.Envelope{Command: command.Command{ID: "big", Kind: "k", Queue: "default", Payload: make([]byte, s.Limit())}, Token: "big"}
	if err := s.Publish(env, func(stream.Accepted, error) {}); !errors.Is(err, stream.ErrTooLarge) {
		t.Errorf("publish of %d bytes: %v, want ErrTooLarge", s.Limit(), err)
	}
}
