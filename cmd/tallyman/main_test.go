package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"go.uber.org/goleak"
)

// asCommand makes the test binary behave as the command.
const asCommand = "TALLYMAN_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a command may run. It is no measure of anything: only a
// failing test waits for that long.
const patience = 3 * time.Minute

// scene is a server, reached by the command as any user would.
type scene struct {
	url    string
	nc     *nats.Conn
	server *embedded.Server
}

const users = `authorization { users = [
	{user: op, password: op}
	{user: blind, password: blind, permissions: {publish: {deny: ["$JS.API.STREAM.INFO.KV_main"]}}}
	{user: keep, password: keep, permissions: {publish: {deny: ["$JS.API.STREAM.MSG.DELETE.main_commands"]}}}
	{user: close, password: close, permissions: {publish: {deny: ["$JS.API.STREAM.INFO.main_journal"]}}}
	{user: shut, password: shut, permissions: {publish: {deny: ["$JS.API.DIRECT.GET.main_commands"]}}}
]}`

func newScene(t *testing.T) *scene {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(embedded.Config{Dir: dir, ConfigFile: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	url := as("op", s.URL())
	nc, err := tallyman.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		nc.Close()
		<-closed
	})
	return &scene{url, nc, s}
}

func as(user, url string) string {
	return strings.Replace(url, "nats://", "nats://"+user+":"+user+"@", 1)
}

func (s *scene) js(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// pool opens the pool for the time of the test.
func (s *scene) pool(t *testing.T) *tallyman.Pool {
	t.Helper()
	p, err := tallyman.Open(t.Context(), s.nc, "main")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func submit(t *testing.T, p *tallyman.Pool, c tallyman.Command) {
	t.Helper()
	if _, err := p.Submit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// work runs a worker until the commands named have their outcome.
func work(t *testing.T, p *tallyman.Pool, ids ...string) {
	t.Helper()
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	mux.Handle("bad", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errors.New("never\nagain"))
	}))
	w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for _, id := range ids {
		if _, err := p.Wait(t.Context(), id); err != nil && !errors.Is(err, tallyman.ErrParked) {
			t.Error(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type outcome struct {
	stdout, stderr string
	code           int
}

// run runs the command as a process of its own.
func (s *scene) run(t *testing.T, args ...string) outcome {
	t.Helper()
	return run(t, s.url, "", args...)
}

func run(t *testing.T, url, stdin string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "NATS_URL="+url, "TALLYMAN_POOL=main")
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// expect fails the test unless the command ended with code and printed, on
// stdout or stderr, every one of the texts.
func (o outcome) expect(t *testing.T, code int, texts ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("got exit code %d, want %d", o.code, code)
	}
	for _, want := range texts {
		if !strings.Contains(o.stdout+o.stderr, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if t.Failed() {
		t.Fatalf("stdout:\n%s\nstderr:\n%s", o.stdout, o.stderr)
	}
}

// object reads what was printed as one JSON object.
func (o outcome) object(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(o.stdout), &m); err != nil {
		t.Fatalf("%v in %q, stderr %q", err, o.stdout, o.stderr)
	}
	return m
}

// equal compares a value that came from JSON with its text.
func equal(t *testing.T, m map[string]any, key, want string) {
	t.Helper()
	if got := fmt.Sprint(m[key]); got != want {
		t.Errorf("%s: got %s, want %s; all: %v", key, got, want, m)
	}
}
