package docs_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	pooltest.SideBySide(4)
	goleak.VerifyTestMain(m)
}

// patience bounds what must happen; denial is how long a request may take that
// must not, and whose refusal the client library does not tell.
const (
	patience = 2 * time.Minute
	denial   = 2 * time.Second
)

// block returns what stands between two markers of a document, without its fence.
func block(t *testing.T, path, name string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), "<!-- "+name+": begin -->\n```")
	if !ok {
		t.Fatalf("%s has no block %q", path, name)
	}
	_, after, _ = strings.Cut(after, "\n") // the language of the fence
	inside, _, ok := strings.Cut(after, "```\n<!-- "+name+": end -->")
	if !ok {
		t.Fatalf("%s: the block %q does not end", path, name)
	}
	return inside
}

// serve starts a server with the users of a document, and says how they
// connect to it and open the pool. User "all" may do everything, for the test itself.
func serve(ctx context.Context, t *testing.T, users string) (connect func(user string) *nats.Conn, open func(user string) *tallyman.Pool) {
	t.Helper()
	const first = "{ user: producer,"
	if !strings.Contains(users, first) {
		t.Fatalf("the block has no %q", first)
	}
	users = strings.Replace(users, first, "{ user: all, password: change-me }\n"+first, 1)
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{ConfigFile: config, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	connect = func(user string) *nats.Conn {
		t.Helper()
		nc, err := tallyman.Connect(server.URL(), nats.UserInfo(user, "change-me"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	open = func(user string) *tallyman.Pool {
		t.Helper()
		p, err := tallyman.Open(ctx, connect(user), "main")
		if err != nil {
			t.Fatalf("open as %s: %v", user, err)
		}
		t.Cleanup(func() { _ = p.Close() })
		return p
	}
	return connect, open
}

// denials is the log of a worker that is to be denied nothing. Only the worker writes to it.
type denials struct {
	found bool
	text  string
}

func (d *denials) Write(p []byte) (int, error) {
	if line := string(p); strings.Contains(line, "denied") || strings.Contains(line, "may not") {
		d.found, d.text = true, line
	}
	return len(p), nil
}

// handlers do what a worker needs rights for: a parent saves progress, fails, is
// taken over and asks for follow-ups; what they do is for child to say.
func handlers(followUps func(*tallyman.Claim) error, child tallyman.HandlerFunc) *tallyman.Mux {
	mux := &tallyman.Mux{}
	mux.Handle("parent", tallyman.HandlerFunc(func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		if err := claim.Progress(ctx, uint64(claim.Attempt()), nil); err != nil {
			return tallyman.Result{}, err
		}
		if claim.Attempt() == 1 {
			return tallyman.Result{}, errors.New("once more") // a nak, then a takeover
		}
		return tallyman.Result{}, followUps(claim)
	}))
	mux.Handle("child", child)
	mux.Handle("reject", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errors.New("never"))
	}))
	return mux
}

// work runs a worker until the test is over, in which it is to be denied nothing.
func work(t *testing.T, p *tallyman.Pool, mux *tallyman.Mux) *tallyman.Worker {
	t.Helper()
	log := &denials{}
	worker, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // when it has ended
		if log.found {
			t.Errorf("the worker was denied something: %s", log.text)
		}
	})
	pooltest.Run(t, worker.Run)
	return worker
}

// completed waits for the receipt of a command.
func completed(ctx context.Context, t *testing.T, producer *tallyman.Pool, id string) {
	t.Helper()
	if r, err := producer.Wait(ctx, id); err != nil || r.State != tallyman.Completed {
		t.Fatalf("wait for %s as producer: got %+v, %v, want it completed", id, r, err)
	}
}

// reject submits a command that the worker parks, and waits for that.
func reject(ctx context.Context, t *testing.T, producer *tallyman.Pool, id string) {
	t.Helper()
	if _, err := producer.Submit(ctx, tallyman.Command{ID: id, Kind: "reject"}); err != nil {
		t.Fatal(err)
	}
	if _, err := producer.Wait(ctx, id); !errors.Is(err, tallyman.ErrParked) {
		t.Fatalf("wait for %s: got %v, want it parked", id, err)
	}
}

// deniedSettings makes sure that neither settings nor sealed books can be changed.
func deniedSettings(ctx context.Context, t *testing.T, records *kvstate.Store) {
	t.Helper()
	for _, key := range []command.Token{kvstate.KeySettings, kvstate.KeyAudit} {
		e, err := records.Read(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if err := records.PutWait(ctx, key, []byte("{}"), e.Revision); !errors.Is(err, kvstate.ErrDenied) {
			t.Errorf("write %s: got %v, want %v", key, err, kvstate.ErrDenied)
		}
	}
}
