package pipeline_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; it only ends a broken run.
const patience = 60 * time.Second

// call is one request and how often its end was told.
type call struct {
	subject string
	sent    atomic.Bool
	answers atomic.Int64
	ends    atomic.Int64
	err     atomic.Value // of its end, if that was an error
}

// end notes the end of a call and makes room in the window.
func (c *call) end(err error, window chan struct{}) {
	if err != nil {
		c.err.Store(err)
	}
	if c.ends.Add(1) == 1 {
		<-window
	}
}

// responder answers on "one" once and on "many" three times, and never on "silent".
func responder(t *testing.T, url string) {
	t.Helper()
	nc := dial(t, url)
	for subject, n := range map[string]int{"one": 1, "many": answers, "silent": 0} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			for range n {
				_ = m.Respond([]byte("x")) // fails while the server is away
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

const answers = 3

func dial(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		nc.Close()
		<-closed
	})
	return nc
}

// TestPipe_EveryCallEndsOnce sends from many goroutines while the server is
// bounced, requests time out and, at last, the pipe is closed under them.
func TestPipe_EveryCallEndsOnce(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	responder(t, server.URL())
	nc := dial(t, server.URL())
	pipe, err := pipeline.New(nc, pipeline.Config{Timeout: 150 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}

	const senders, window = 8, 64
	subjects := []string{"one", "many", "silent", "nobody"}
	var (
		sending sync.WaitGroup
		calls   [senders][]*call
		windows [senders]chan struct{}
		ended   [4]atomic.Int64 // by subject, without an error or with the expected one
		closing = make(chan struct{})
	)
	for i := range senders {
		windows[i] = make(chan struct{}, window)
		sending.Go(func() {
			room := windows[i]
			for n := 0; ; n++ {
				select {
				case <-closing:
					return
				case room <- struct{}{}:
				}
				kind := n % len(subjects)
				c := &call{subject: subjects[kind]}
				calls[i] = append(calls[i], c)
				m := &nats.Msg{Subject: c.subject, Data: []byte("x")}
				var err error
				if c.subject == "many" {
					err = pipe.SendMany(m, func(_ *nats.Msg, err error) bool {
						if err == nil && c.answers.Add(1) < answers {
							return true
						}
						if err == nil {
							ended[kind].Add(1)
						}
						c.end(err, room)
						return false
					})
				} else {
					send, lent := pipe.Send, n%8 < 4
					if lent {
						send = pipe.Lend
					}
					err = send(m, func(_ *nats.Msg, err error) {
						if lent {
							m.Subject, m.Data = "", nil // ours again
						}
						if c.subject == "one" && err == nil || c.subject == "silent" && errors.Is(err, pipeline.ErrTimeout) ||
							c.subject == "nobody" && errors.Is(err, pipeline.ErrNoResponders) {
							ended[kind].Add(1)
						}
						c.end(err, room)
					})
				}
				if err != nil {
					<-room
					continue
				}
				c.sent.Store(true)
			}
		})
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); !ok(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	worked := func(round int) {
		t.Helper()
		var before [4]int64
		for kind := range ended {
			before[kind] = ended[kind].Load()
		}
		for kind, subject := range subjects {
			eventually(fmt.Sprintf("a request on %q to end as it should, in round %d", subject, round), func() bool { return ended[kind].Load() > before[kind] })
		}
	}
	for round := range 3 {
		worked(round)
		server.Kill()
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	worked(3)
	if err := pipe.Close(); err != nil { // with windows full of requests under way
		t.Errorf("close: %v", err)
	}
	close(closing)
	sending.Wait()

	total, lost := 0, 0
	for i := range calls {
		for n, c := range calls[i] {
			if !c.sent.Load() {
				if got := c.ends.Load(); got != 0 {
					t.Errorf("sender %d, request %d on %q was refused and its end told %d times", i, n, c.subject, got)
				}
				continue
			}
			total++
			eventually("the end of a request that was sent", func() bool { return c.ends.Load() > 0 })
			if err, _ := c.err.Load().(error); errors.Is(err, pipeline.ErrDisconnected) {
				lost++
			}
		}
	}
	for i := range calls {
		for n, c := range calls[i] {
			if got := c.ends.Load(); got > 1 {
				t.Errorf("sender %d, request %d on %q: its end was told %d times, want once", i, n, c.subject, got)
			}
			if got := c.answers.Load(); got > answers {
				t.Errorf("sender %d, request %d on %q: got %d answers, want at most %d", i, n, c.subject, got, answers)
			}
		}
	}
	if lost == 0 {
		t.Errorf("none of %d requests was lost with its connection: nothing was shown", total)
	}
	if err := pipe.Send(&nats.Msg{Subject: "one"}, func(*nats.Msg, error) {}); !errors.Is(err, pipeline.ErrClosed) {
		t.Errorf("on a closed pipe: %v, want ErrClosed", err)
	}
}
