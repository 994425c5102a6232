//go:build unix

package e2e

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// stand is a server process with one pool, and what its workers write down.
type stand struct {
	dir    string
	url    string
	server *process
	env    []string // of the server
	nc     *nats.Conn
	js     jetstream.JetStream
	pool   *tallyman.Pool
	wit    *witness
	// amnesia says that the server has lost count of deliveries. Then a command
	// may come as if for the first time to a worker that is still at it.
	amnesia bool
}

// short are the settings of most tests, which wait for leases to run out. Those
// of workers that live outlast a machine that stalls for a second or two.
var short = tallyman.Settings{Lease: 3 * time.Second, MaxAttempts: 5, BackoffMin: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond}

func newStand(t *testing.T, settings tallyman.Settings) *stand {
	t.Helper()
	s := &stand{dir: t.TempDir()}
	if err := os.Mkdir(s.path("gates"), 0o700); err != nil {
		t.Fatal(err)
	}
	if settings.Commit == tallyman.CommitGroup { // it is for servers that flush to disk
		s.env = append(s.env, serverSyncEnv+"=always")
	}
	s.server, s.url = startServer(t, s.dir, "127.0.0.1:0", s.env...)
	var err error
	if s.nc, err = tallyman.Connect(s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.nc.Close)
	if s.js, err = jetstream.New(s.nc); err != nil {
		t.Fatal(err)
	}
	if err := tallyman.Create(t.Context(), s.nc, tallyman.DefaultPool, pooltest.Settings(settings), tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	if s.pool, err = tallyman.Open(t.Context(), s.nc, tallyman.DefaultPool); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.pool.Close() }) // the connection goes next
	s.wit = watch(t, s.js, s.pool.Shards())
	t.Cleanup(func() {
		if t.Failed() {
			s.show(t)
		}
	})
	return s
}

// show puts what was written down into the log of a failed test.
func (s *stand) show(t *testing.T) {
	t.Helper()
	for _, name := range []string{"effects", "workers.log", "server.log"} {
		text, err := os.ReadFile(s.path(name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Log(err)
		}
		const most = 8 << 10
		if len(text) > most {
			text = text[len(text)-most:]
		}
		t.Logf("end of %s:\n%s", name, text)
	}
}

func (s *stand) path(name string) string { return filepath.Join(s.dir, name) }

// restartServer brings a killed server back on its port and store.
func (s *stand) restartServer(t *testing.T) {
	t.Helper()
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	s.server, _ = startServer(t, s.dir, u.Host, s.env...)
	s.amnesia = true
}

// worker starts a worker process and returns once it works.
func (s *stand) worker(t *testing.T, env ...string) *process {
	t.Helper()
	p := s.workerSoon(t, env...)
	await(t, "a worker to start", func() bool { return s.has("started", "-", strconv.Itoa(p.pid)) || !p.alive() })
	return p
}

// workerSoon starts a worker process.
func (s *stand) workerSoon(t *testing.T, env ...string) *process {
	t.Helper()
	path, err := workerProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "NATS_URL="+s.url, "TALLYMAN_EFFECTS="+s.path("effects"), "TALLYMAN_GATES="+s.path("gates"))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = appendTo(t, s.path("workers.log"))
	return launch(t, cmd)
}

// failAt is the environment of a worker that dies, once, at a point.
func (s *stand) failAt(point, glob string) string {
	return "TALLYMAN_FAILPOINT=" + point + "=kill:" + glob + ":" + s.path("died")
}

// open lets handlers through the named gate.
func (s *stand) open(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.path("gates"), gate), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *stand) submit(t *testing.T, kind, id, payload string) tallyman.Submission {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sub, err := s.pool.Submit(ctx, tallyman.Command{ID: id, Kind: kind, Payload: []byte(payload)})
	if err != nil {
		t.Fatalf("submit %s: %v", id, err)
	}
	return sub
}

// receipt waits for the receipt of a command that is to complete.
func (s *stand) receipt(t *testing.T, id string) tallyman.Receipt {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := s.pool.Wait(ctx, id)
	if err != nil {
		t.Fatalf("receipt of %s: %v", id, err)
	}
	return r
}

// line is one that a worker wrote.
type line struct {
	what    string // begin, effect, step, fenced, event, ...
	id      string
	attempt int
	token   uint64
	pid     string
	detail  string
}

// lines returns all that workers wrote, in their order.
func (s *stand) lines(t *testing.T) []line {
	t.Helper()
	text, err := os.ReadFile(s.path("effects"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var all []line
	for _, l := range strings.Split(string(text), "\n") {
		f := strings.Fields(l)
		if len(f) != 6 {
			continue // the end of the file, or of a worker
		}
		attempt, err1 := strconv.Atoi(f[2])
		token, err2 := strconv.ParseUint(f[3], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("line %q: %v", l, err)
		}
		all = append(all, line{what: f[0], id: f[1], attempt: attempt, token: token, pid: f[4], detail: f[5]})
	}
	return all
}

// of returns the lines of one sort about one command.
func (s *stand) of(t *testing.T, what, id string) []line {
	t.Helper()
	var some []line
	for _, l := range s.lines(t) {
		if l.what == what && l.id == id {
			some = append(some, l)
		}
	}
	return some
}

// event reports whether a worker saw an event of a command.
func (s *stand) event(t *testing.T, id, name string) bool {
	t.Helper()
	for _, l := range s.of(t, "event", id) {
		if l.detail == name {
			return true
		}
	}
	return false
}

func (s *stand) has(what, id, pid string) bool {
	text, _ := os.ReadFile(s.path("effects")) // not there yet
	for _, l := range strings.Split(string(text), "\n") {
		if f := strings.Fields(l); len(f) == 6 && f[0] == what && f[1] == id && (pid == "" || f[4] == pid) {
			return true
		}
	}
	return false
}

// awaitLine waits until a worker has written such a line.
func (s *stand) awaitLine(t *testing.T, what, id string) {
	t.Helper()
	await(t, what+" of "+id, func() bool { return s.has(what, id, "") })
}

// logged reports whether a worker's log holds the text.
func (s *stand) logged(t *testing.T, text string) bool {
	t.Helper()
	log, err := os.ReadFile(s.path("workers.log"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(log), text)
}
