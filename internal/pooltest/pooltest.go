// Package pooltest sets the scene of tests that need a pool on a real server.
// Nothing else may import it.
//
// Whatever it returns ends with the test, last come first, and leaves no
// goroutine behind. What goes wrong here fails the test at once.
package pooltest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"go.uber.org/goleak"
)

// SideBySide lets more tests run at once than there are processors, so many for
// each, but no more than 8, unless -parallel says how many. It is for packages whose tests mostly wait, for leases
// to run out and servers to come back: two of them at a time leave a machine idle.
// Call it in TestMain, before the tests run.
func SideBySide(each int) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return
	}
	procs := runtime.GOMAXPROCS(0)
	if err := flag.Set("test.parallel", strconv.Itoa(max(procs, min(each*procs, 8)))); err != nil {
		panic(err)
	}
}

// Main runs the tests of a package that kills servers, side by side, and fails if
// a goroutine outlives them.
func Main(m *testing.M) {
	SideBySide(4)
	// A nats-server that is killed while it opens a store leaves the store's own
	// goroutines behind. Nothing of ours runs in them.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

// Server starts a server of the test's own.
func Server(t testing.TB) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Cluster starts a cluster of three servers.
func Cluster(t testing.TB) *embedded.Cluster {
	t.Helper()
	c, err := embedded.StartCluster(3, embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Connect connects as users do. What the server says out of turn is not for
// the terminal; options may say otherwise.
func Connect(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := tallyman.Connect(url, append([]nats.Option{nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		if !nc.IsClosed() {
			nc.Close()
			<-closed
		}
	})
	return nc
}

// JetStream is what any other client sees.
func JetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Settings returns s with the removal that the environment asks for, by
// TALLYMAN_REMOVAL=ack or sweep, unless s names one: so the tests of one way also run the other.
func Settings(s tallyman.Settings) tallyman.Settings {
	s.Removal = cmp.Or(s.Removal, tallyman.Removal(os.Getenv("TALLYMAN_REMOVAL")))
	return s
}

// Create makes the pool "main" if there is none, and opens it.
func Create(t testing.TB, nc *nats.Conn, settings tallyman.Settings, topology tallyman.Topology) *tallyman.Pool {
	t.Helper()
	Make(t, Context(t), nc, settings, topology)
	return Open(t, nc)
}

// Make makes the pool "main" if there is none: again and again, as tallyman init
// does, while a cluster elects a leader, which on a busy machine it may do at any time.
func Make(t testing.TB, ctx context.Context, nc *nats.Conn, settings tallyman.Settings, topology tallyman.Topology) {
	t.Helper()
	Await(t, ctx, "a leader that makes the pool", func() bool {
		err := tallyman.Create(ctx, nc, "main", Settings(settings), topology)
		if err != nil && !errors.Is(err, tallyman.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// Open opens the pool "main".
func Open(t testing.TB, nc *nats.Conn) *tallyman.Pool {
	t.Helper()
	p, err := tallyman.Open(t.Context(), nc, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // returns nil
	return p
}

// Run calls run, such as that of a worker, until stop is called or the test is
// over. Stop returns once it has ended, and fails the test if it ended badly.
func Run(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("what ran ended with: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// patience bounds every wait for something that is sure to come. It is no
// measure of anything: only a failing test waits for that long.
const patience = 2 * time.Minute

// Context bounds a whole test. It ends a little before the time of the test
// binary is up, so that what was waited for in vain is named. A limit that
// counted from here would run out on a slow machine while subtests that run in
// parallel wait for their turn.
func Context(t testing.TB) context.Context {
	t.Helper()
	limited, ok := t.(interface{ Deadline() (time.Time, bool) })
	if !ok { // a benchmark
		return t.Context()
	}
	end, ok := limited.Deadline()
	if !ok {
		return t.Context()
	}
	ctx, cancel := context.WithDeadline(t.Context(), end.Add(-20*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// Await polls until ok, and fails the test if ctx ends before, or after two minutes.
func Await(t testing.TB, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	enough := time.NewTimer(patience)
	defer enough.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-enough.C:
			t.Fatalf("waited in vain for %s", what)
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
