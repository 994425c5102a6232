package tallyman_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/story"
)

// link is a TCP proxy in front of a server that can stand still: what is sent
// meanwhile arrives later, as after a pause of the network or of a process.
type link struct {
	url    string
	mu     sync.Mutex
	open   chan struct{} // closed while bytes flow
	closed chan struct{}
	conns  sync.WaitGroup
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{url: "nats://" + l.Addr().String(), open: make(chan struct{}), closed: make(chan struct{})}
	close(k.open)
	k.conns.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", u.Host)
			if err != nil {
				in.Close()
				continue
			}
			k.conns.Go(func() { k.carry(in, out) })
			k.conns.Go(func() { k.carry(out, in) })
		}
	})
	t.Cleanup(func() {
		close(k.closed)
		l.Close()
		k.conns.Wait()
	})
	return k
}

// carry carries bytes one way until the link or either end is closed.
func (k *link) carry(from, to net.Conn) {
	stop := make(chan struct{})
	defer close(stop)
	k.conns.Go(func() {
		select {
		case <-k.closed:
		case <-stop:
		}
		from.Close()
		to.Close()
	})
	_, _ = io.Copy(to, io.TeeReader(from, writerFunc(func([]byte) {
		k.mu.Lock()
		open := k.open
		k.mu.Unlock()
		select {
		case <-open:
		case <-k.closed:
		}
	})))
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

// stop holds everything up until the function that it returns is called.
func (k *link) stop() (resume func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = make(chan struct{})
	return sync.OnceFunc(func() { close(k.open) })
}

// story gathers and tells.
func (r *rig) story(t testing.TB, id string, opts story.Options) story.Story {
	t.Helper()
	e, err := story.Gather(r.ctx, r.Commands(), r.Records(), id, opts)
	if err != nil {
		t.Fatal(err)
	}
	return story.Tell(e)
}

// inOrder holds the texts of a story to patterns that they match in this order.
func inOrder(t *testing.T, s story.Story, patterns ...string) {
	t.Helper()
	at := 0
	for _, p := range patterns {
		re := regexp.MustCompile(p)
		for ; at < len(s.Events) && !re.MatchString(s.Events[at].Text); at++ {
			continue
		}
		if at == len(s.Events) {
			t.Fatalf("nothing matches %q behind what came before it:\n%s", p, s.Text(time.UTC))
		}
		at++
	}
}

func TestStory_OfAStaleWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, mortal(), tallyman.Topology{})
	l := newLink(t, r.server.URL())
	begun, released := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	defer release()
	stale := route(tallyman.Route{Kind: "copy", Eager: true, Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		close(begun)
		<-released // whatever its context says
		return tallyman.Result{Body: []byte("late")}, nil
	})})
	var events journal
	two, _ := start(t, open(t, connect(t, l.url)), tallyman.WorkerConfig{Mux: stale, Name: "worker-2", Grace: time.Minute, Observe: events.observe})
	r.submit(t, tallyman.Command{ID: "img-7", Kind: "copy"})
	select {
	case <-begun:
	case <-r.ctx.Done():
		t.Fatal("worker-2 did not begin")
	}
	resume := l.stop()
	defer resume()
	five, _ := start(t, open(t, connect(t, r.server.URL())), tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "copy", Handler: tallyman.HandlerFunc(echo)}), Name: "worker-5"})
	receipt, err := r.Wait(r.ctx, "img-7")
	if err != nil || receipt.Owner != five.Owner() {
		t.Fatalf("got the receipt %+v, %v; want one by %s", receipt, err, five.Owner())
	}
	eventually(t, r.ctx, "worker-2 to lose its lease", func() bool { return events.count(tallyman.EventLeaseLost, "img-7") > 0 })
	resume()
	release()
	eventually(t, r.ctx, "its late result to be refused", func() bool { return events.count(tallyman.EventRefused, "img-7") > 0 })
	eventually(t, r.ctx, "both notes", func() bool {
		notes, _, err := r.Records().Notes(r.ctx, "img-7")
		return err == nil && len(notes) == 2
	})
	told := r.story(t, "img-7", story.Options{Terms: story.Terms{Retention: time.Hour}})
	w2, w5 := regexp.QuoteMeta(two.Owner()), regexp.QuoteMeta(five.Owner())
	inOrder(t, told,
		`^Sequence 1 was stored\.$`,
		`^`+w2+` claimed it with token \d+\.$`,
		`^`+w2+` lost token \d+ after (one|two|three|four) missed heartbeats?, 4\.5s after the last sign of life`,
		`^`+w5+` took it over from `+w2+` with token \d+\.$`,
		`^`+w5+` finished it with token \d+ on attempt 2; the receipt holds no bytes\.$`,
		`^`+w2+`'s late result under token \d+ was refused: it had lost its lease after`,
	)
	if told.State != "completed" || !strings.HasPrefix(told.Verdict, "Completed, and final. The record expires on ") {
		t.Errorf("got the state %s with the verdict %q", told.State, told.Verdict)
	}
	if n := len(told.Events); n != 6 {
		t.Errorf("%d events, want 6:\n%s", n, told.Text(time.UTC))
	}
	for _, e := range told.Events[1:] {
		if e.At.IsZero() || e.Actor == "" || e.Token == 0 {
			t.Errorf("an event lacks time, actor or token: %+v", e)
		}
	}
}

func TestStory_OfCopies(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	_, stop := start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.submit(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")})
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	r.publish(t, "main.commands.default.echo.a", "x") // another copy
	r.publish(t, "main.commands.default.echo.b", "x")
	r.emptied(t)
	r.publish(t, "main.commands.default.echo.a", "y") // and one that means something else
	r.emptied(t)
	stop() // with that its notes are written

	told := r.story(t, "a", story.Options{})
	inOrder(t, told,
		`finished it on attempt 1; the receipt holds one byte\.$`,
		`^Sequence 2, a further copy, reached \S+ and was absorbed under _absorbed/2\.$`,
		`parked sequence 4 beside the record under _conflict/4: "the id stands for a command of kind \\"echo\\"`,
	)
	if got := len(told.Unknown); got != 2 {
		t.Errorf("%d things are unknown, want 2: when sequence 1 was stored, and what was not looked for: %q", got, told.Unknown)
	}

	t.Run("without notes, a scan finds what was filed", func(t *testing.T) {
		kv, err := r.js.KeyValue(r.ctx, "main")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := kv.ListKeysFiltered(r.ctx, "_note.a.*")
		if err != nil {
			t.Fatal(err)
		}
		for k := range keys.Keys() {
			if err := kv.Purge(r.ctx, k); err != nil {
				t.Fatal(err)
			}
		}
		if told := r.story(t, "a", story.Options{}); len(told.Events) != 2 {
			t.Errorf("without notes:\n%s", told.Text(time.UTC))
		}
		inOrder(t, r.story(t, "a", story.Options{Scan: true}),
			`finished it on attempt 1`, `^Sequence 2, a further copy, was absorbed\.$`, `parked a further copy as conflict under _conflict/4`)
	})
	t.Run("an unknown id is said to be unknown, with what was looked for", func(t *testing.T) {
		_, err := story.Gather(r.ctx, r.Commands(), r.Records(), "who ever", story.Options{Scan: true})
		if !errors.Is(err, story.ErrNotFound) {
			t.Fatalf("got %v, want ErrNotFound", err)
		}
		for _, want := range []string{`"who ever"`, "who=20ever", "main.commands.*.*.who=20ever", "_note.who=20ever.*", "filed under a sequence"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %q", want, err)
			}
		}
	})
}

func TestStory_OfFollowUps(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: route(
		tallyman.Route{Kind: "parent", Handler: tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, c.FollowUp(tallyman.Command{Kind: "echo"}, tallyman.Command{ID: "taken", Kind: "echo", Payload: []byte("other")})
		})},
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
	)})
	r.submit(t, tallyman.Command{ID: "taken", Kind: "echo"})
	if _, err := r.Wait(r.ctx, "taken"); err != nil {
		t.Fatal(err)
	}
	r.submit(t, tallyman.Command{ID: "p", Kind: "parent"})
	if _, err := r.Wait(r.ctx, "p/1"); err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
	inOrder(t, r.story(t, "p", story.Options{}),
		`finished it on attempt 1`, `^Its receipt bore two follow-ups: "p/1" \(echo\), "taken" \(echo\)\.$`, `_conflict/p/2`)
	inOrder(t, r.story(t, "p/1", story.Options{}), `^It is a follow-up of "p", which is completed\.$`)
}

func TestStory_OfADamagedRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	r.submit(t, tallyman.Command{ID: "d", Kind: "echo"})
	if err := r.Records().PutWait(r.ctx, "d", []byte("nonsense\x1b[2J"), 0); err != nil {
		t.Fatal(err)
	}
	told := r.story(t, "d", story.Options{})
	inOrder(t, told, `still in the stream`, `^Revision \d+ of its record is damaged, and is not acted on: "kvstate: decode record`)
	if told.State != story.StateDamaged || !strings.Contains(told.Verdict, "or else parks it as corrupt") {
		t.Errorf("got the state %s with the verdict %q", told.State, told.Verdict)
	}
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.record(t, "d", parked)
	told = r.story(t, "d", story.Options{})
	inOrder(t, told, `is damaged`, `parked it as corrupt`)
	inOrder(t, told, `^Bytes that did not decode are kept under _corrupt/d/\d+\.$`)
	if told.State != string(kvstate.Parked) {
		t.Errorf("got the state %s, want parked", told.State)
	}
}
