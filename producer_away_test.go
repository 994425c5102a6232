package tallyman_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

// ice freezes what a server says to a client: it is sent, and does not arrive.
type ice struct {
	mu   sync.Mutex
	at   string        // freezes by itself once the client has sent this
	thaw chan struct{} // nil: flowing; closed by melt
}

func (f *ice) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thaw == nil {
		f.thaw = make(chan struct{})
	}
}

// freezeAt freezes once the client has sent text.
func (f *ice) freezeAt(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = text
}

func (f *ice) melt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = ""
	if f.thaw != nil {
		close(f.thaw)
		f.thaw = nil
	}
}

// Dial makes it a dialer for a client.
func (f *ice) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &icy{Conn: c, ice: f, closed: make(chan struct{})}, nil
}

// icy is a connection under ice.
type icy struct {
	net.Conn
	ice    *ice
	once   sync.Once
	closed chan struct{}
}

func (c *icy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.ice.mu.Lock()
	thaw := c.ice.thaw
	c.ice.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-c.closed:
		}
	}
	return n, err
}

func (c *icy) Write(b []byte) (int, error) {
	c.ice.mu.Lock()
	freeze := c.ice.at != "" && bytes.Contains(b, []byte(c.ice.at))
	c.ice.mu.Unlock()
	if freeze {
		c.ice.freeze()
	}
	return c.Conn.Write(b)
}

func (c *icy) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// newIcyRig is a rig whose pool has its server under ice.
func newIcyRig(t *testing.T) (*rig, *ice) {
	t.Helper()
	r, f := newRig(t, brisk, tallyman.Topology{}), &ice{}
	r.Pool = open(t, connect(t, r.server.URL(), nats.SetCustomDialer(f)))
	t.Cleanup(f.melt)
	return r, f
}

func TestProducer_SubmitEndsWithItsContextThoughTheServerIsFrozen(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]string{
		"before the record is read":       "$JS.API.DIRECT.GET.KV_main",
		"before the publish is confirmed": "main.commands.default.echo.a",
		"from the start":                  "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, f := newIcyRig(t)
			if f.freezeAt(at); at == "" {
				f.freeze()
			}
			c := tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}
			sub, err := r.Submit(briefly(t, r.ctx), c)
			if !errors.Is(err, tallyman.ErrUnconfirmed) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %+v, %v; want it unconfirmed at the deadline", sub, err)
			}
			if errors.Is(err, kvstate.ErrIndeterminate) {
				t.Errorf("got %v: a request's own timeout ended it, not the deadline", err)
			}
			// The same for many, each told once.
			told := make([]int, 10)
			err = r.NewProducer(tallyman.ProducerConfig{Window: 20}).SubmitMany(briefly(t, r.ctx), func(yield func(tallyman.Command) bool) {
				for i := range told {
					if !yield(tallyman.Command{ID: fmt.Sprint("m-", i), Kind: "echo"}) {
						return
					}
				}
			}, func(i int, _ tallyman.Submission, err error) {
				if told[i]++; !errors.Is(err, tallyman.ErrUnconfirmed) || errors.Is(err, kvstate.ErrIndeterminate) {
					t.Errorf("command %d of many: %v; want it unconfirmed at the deadline", i, err)
				}
			})
			if err != nil || slices.Contains(told, 0) || slices.Max(told) != 1 {
				t.Errorf("many: %v, told %v times; want each told once", err, told)
			}
			f.melt()
			if sub, err = r.Submit(r.ctx, c); err != nil {
				t.Errorf("submitted again: %+v, %v; want it accepted or absorbed", sub, err)
			}
			if got := r.stored(t, "a"); got != 1 {
				t.Errorf("the stream holds %d copies, want 1", got)
			}
		})
	}
}

// briefly returns a context that ends soon, yet leaves a busy machine the time to send something.
func briefly(t *testing.T, ctx context.Context) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// stored counts the copies of a command in the stream.
func (r *rig) stored(t *testing.T, id string) uint64 {
	t.Helper()
	var info *jetstream.StreamInfo
	eventually(t, r.ctx, "the state of the stream", func() bool { // the connection may still be coming back
		str, err := r.js.Stream(t.Context(), "main_commands") // which gives up by itself
		if err == nil {
			info, err = str.Info(t.Context(), jetstream.WithSubjectFilter("main.commands.*.*."+id))
		}
		return err == nil
	})
	var n uint64
	for _, copies := range info.State.Subjects {
		n += copies
	}
	return n
}

func TestProducer_UnconfirmedWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	p := r.NewProducer(tallyman.ProducerConfig{Confirm: 300 * time.Millisecond})
	c := tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}
	r.server.Kill()
	if sub, err := p.Submit(context.WithoutCancel(r.ctx), c); !errors.Is(err, tallyman.ErrUnconfirmed) {
		t.Errorf("within the confirm time: got %+v, %v; want ErrUnconfirmed", sub, err)
	}
	if sub, err := p.Submit(briefly(t, r.ctx), c); !errors.Is(err, tallyman.ErrUnconfirmed) {
		t.Errorf("within a deadline: got %+v, %v; want ErrUnconfirmed", sub, err)
	}
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	for i, absorbed := range []bool{false, true} {
		// The first waits by itself until the connection is back.
		if sub, err := r.Submit(r.ctx, c); err != nil || sub.Absorbed != absorbed || sub.Sequence != 1 {
			t.Errorf("submission %d with the server back: got %+v, %v; want sequence 1, absorbed %v", i, sub, err, absorbed)
		}
	}
	if got := r.stored(t, "a"); got != 1 {
		t.Errorf("the stream holds %d copies, want 1", got)
	}
}

func TestProducer_UnconfirmedThoughItWasAccepted(t *testing.T) {
	t.Parallel()
	r, f := newIcyRig(t)
	f.freezeAt("main.commands.default.echo.a")
	c := tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}
	if sub, err := r.Submit(briefly(t, r.ctx), c); !errors.Is(err, tallyman.ErrUnconfirmed) {
		t.Errorf("got %+v, %v; want ErrUnconfirmed", sub, err)
	}
	eventually(t, r.ctx, "the server to have it all the same", func() bool { return r.stored(t, "a") == 1 })
	f.melt()
	if sub, err := r.Submit(r.ctx, c); err != nil || !sub.Absorbed || sub.Sequence != 1 {
		t.Errorf("submitted again: got %+v, %v; want it absorbed, at sequence 1", sub, err)
	}
	if st, err := r.Commands().State(r.ctx); err != nil || st.LastSeq != 1 {
		t.Errorf("the stream has come to %+v, %v; want sequence 1", st, err)
	}
}

func TestProducer_CloseGivesUpWhatAFrozenServerHolds(t *testing.T) {
	t.Parallel()
	r, f := newIcyRig(t)
	f.freeze()
	p := r.NewProducer(tallyman.ProducerConfig{})
	outcomes := make(chan error, 10)
	for i := range cap(outcomes) {
		c := tallyman.Command{ID: fmt.Sprint("c-", i), Kind: "echo"}
		if err := p.SubmitAsync(context.WithoutCancel(r.ctx), c, func(_ tallyman.Submission, err error) { outcomes <- err }); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(briefly(t, r.ctx)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v, want the deadline", err)
	}
	if got := len(outcomes); got != cap(outcomes) {
		t.Errorf("once it is closed %d of %d outcomes are known, want all", got, cap(outcomes))
	}
	for range len(outcomes) {
		if err := <-outcomes; !errors.Is(err, tallyman.ErrUnconfirmed) {
			t.Errorf("got %v, want ErrUnconfirmed", err)
		}
	}
	f.melt()
	r.submit(t, tallyman.Command{ID: "c-0", Kind: "echo"})
	// The answers to what was given up have come, and led to nothing further.
	for i := 1; i < cap(outcomes); i++ {
		if got := r.stored(t, fmt.Sprint("c-", i)); got != 0 {
			t.Errorf("c-%d was published after its producer was closed", i)
		}
	}
}

func TestProducer_DuplicateWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	var ran atomic.Int64
	entered, goOn := make(chan struct{}, 1), make(chan struct{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("gate", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		ran.Add(1)
		entered <- struct{}{}
		select {
		case <-goOn:
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
		return tallyman.Result{Body: c.Payload()}, nil
	})})
	c := tallyman.Command{ID: "a", Kind: "gate", Payload: []byte("x")}
	first := r.submit(t, c)
	<-entered
	again := func(when string) {
		t.Helper()
		if sub, err := r.Submit(r.ctx, c); err != nil || !sub.Absorbed || sub.Sequence != first.Sequence {
			t.Errorf("%s: got %+v, %v; want it absorbed, at sequence %d", when, sub, err, first.Sequence)
		}
		if got := r.stored(t, "a"); got != 1 {
			t.Errorf("%s: the stream holds %d copies, want 1", when, got)
		}
	}
	again("within the duplicate window")

	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	cfg := str.CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond
	if _, err := r.js.UpdateStream(r.ctx, cfg); err != nil {
		t.Fatal(err)
	}
	// The server takes the message id for new, and only the subject refuses it.
	eventually(t, r.ctx, "the duplicate window to pass", func() bool {
		_, err := r.js.Publish(r.ctx, "main.commands.default.gate.a", []byte("x"), jetstream.WithMsgID("a"))
		return err != nil
	})
	again("after the duplicate window")
	other := c
	other.Payload = []byte("y")
	if sub, err := r.Submit(r.ctx, other); !errors.Is(err, tallyman.ErrConflict) {
		t.Errorf("another payload after the duplicate window: got %+v, %v; want ErrConflict", sub, err)
	}
	close(goOn)
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Error(err)
	}
	r.emptied(t)
	if sub, err := r.Submit(r.ctx, c); err != nil || !sub.Absorbed || sub.State != tallyman.Completed {
		t.Errorf("once it is done: got %+v, %v; want it absorbed in state completed", sub, err)
	}
	if got := ran.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want once", got)
	}
}
