package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/embedded"
)

const echo = "  - kind: echo\n    exec: [cat]\n"

// eventually asks until the page says what is wanted.
func eventually(t *testing.T, url string, code int, text string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(2 * time.Minute); ; <-tick.C {
		got, body := 0, ""
		r, err := client.Get(url)
		if err == nil {
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			got, body = r.StatusCode, string(b)
			if got == code && strings.Contains(body, text) {
				return
			}
		}
		if time.Now().After(until) {
			t.Fatalf("%s: got %d %q (%v), want %d with %q", url, got, body, err, code, text)
		}
	}
}

func TestWorker_Embedded(t *testing.T) {
	t.Parallel()
	dir := poolFile(t, echo)
	p := clitest.Start(t, dir, nil, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json", "--queue", "default", "--queue", "fast", "--lease", "5s")
	url := logged(t, p, "no server was named", "url")
	web := "http://" + logged(t, p, "serving", "http")
	eventually(t, web+"/healthz", 200, "alive")
	eventually(t, web+"/readyz", 200, "ready")

	got := submit(t, url, "echo", "hello", "--id", "a", "--queue", "fast", "--wait", "30s", "--json")
	if want := `{"id":"a","sequence":1,"absorbed":false,"state":"completed","result":"hello"}` + "\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = submit(t, url, "echo", "hello", "--id", "a", "--queue", "fast", "--json")
	if want := `{"id":"a","sequence":1,"absorbed":true}` + "\n"; got != want {
		t.Errorf("the same again: got %s, want %s", got, want)
	}
	for _, line := range []string{"tallyman_completed_total 1", `tallyman_handler_seconds_count{kind="echo"} 1`, `tallyman_parked_total{reason="rejected"} 0`, "tallyman_running 0"} {
		eventually(t, web+"/metrics", 200, line)
	}

	p.Signal(t, syscall.SIGTERM)
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}

	// What was stored is there for the next one, which keeps to the lease.
	code, _, stderr := clitest.Run(t, dir, nil, "--listen", "127.0.0.1:0", "--lease", "6s")
	if code != 1 || !strings.Contains(stderr, "lease 6s, the pool has 5s") {
		t.Errorf("another lease: got exit code %d and %q, want 1 and both leases", code, stderr)
	}
}

func TestWorker_SecondSignal(t *testing.T) {
	t.Parallel()
	dir := poolFile(t, "  - kind: sleep\n    exec: [sleep, '300']\n")
	p := clitest.Start(t, dir, nil, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json", "--drain", "5m")
	url := logged(t, p, "no server was named", "url")
	web := "http://" + logged(t, p, "serving", "http")
	submit(t, url, "sleep", "--id", "a")
	eventually(t, web+"/metrics", 200, "tallyman_running 1")
	p.Signal(t, syscall.SIGTERM)
	p.Line(t, "worker drains")
	eventually(t, web+"/readyz", 503, "draining")
	p.Signal(t, syscall.SIGTERM)
	if code := p.Wait(t); code != 1 {
		t.Errorf("exit code: got %d, want 1", code)
	}
}

func TestWorker_RefusesToStart(t *testing.T) {
	t.Parallel()
	dir := poolFile(t, echo)
	for name, text := range map[string]string{
		"unknown.yaml": "handlers:\n  - kind: echo\n    exec: [cat]\n    colour: red\n",
		"nats.conf": `
			no_auth_user: admin
			authorization { users: [
				{user: admin, password: pw}
				{user: blind, password: pw, permissions: {publish: {deny: "$JS.API.STREAM.INFO.>"}}}
				{user: idle, password: pw, permissions: {publish: {deny: "$JS.API.CONSUMER.INFO.>"}}}
			]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), ConfigFile: filepath.Join(dir, "nats.conf")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	nc, err := tallyman.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if err := tallyman.Create(t.Context(), nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	as := func(user string) string { return strings.Replace(s.URL(), "://", "://"+user+":pw@", 1) }
	taken := strings.TrimPrefix(s.URL(), "nats://")
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"without a pool file", []string{"--config", "missing.yaml"}, 2, []string{"missing.yaml", "\n  - kind: echo\n"}},
		{"with an unknown field", []string{"--config", "unknown.yaml"}, 2, []string{"unknown.yaml:4", "colour"}},
		{"without the pool", []string{"--server", s.URL(), "--pool", "other"}, 1, []string{"no such pool", "tallyman init --pool other"}},
		{"without the queue", []string{"--server", s.URL(), "--queue", "other"}, 1, []string{"no such queue", "tallyman init --pool main --queue other"}},
		{"with another lease", []string{"--server", s.URL(), "--lease", "10s"}, 1, []string{"lease 10s, the pool has 30s"}},
		{"without a server there", []string{"--server", "nats://127.0.0.1:1"}, 1, []string{"127.0.0.1:1", "--server"}},
		{"on a port that is taken", []string{"--embedded", "--listen", taken}, 1, []string{taken, "address already in use", "--listen"}},
		{"on a web port that is taken", []string{"--embedded", "--http", taken}, 1, []string{"--http", taken, "address already in use"}},
		{"without the right to look", []string{"--server", as("blind")}, 1, []string{`permission denied: publish to "$JS.API.STREAM.INFO.KV_main"`}},
		{"without the right to its queue", []string{"--server", as("idle")}, 1, []string{`permission denied: publish to "$JS.API.CONSUMER.INFO.main_commands.default"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := clitest.Run(t, dir, nil, c.args...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr: got %q, want it to contain %q", stderr, want)
				}
			}
		})
	}
	t.Run("and creates nothing", func(t *testing.T) {
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Stream(t.Context(), "KV_other"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("bucket of the other pool: got %v, want %v", err, jetstream.ErrStreamNotFound)
		}
	})
}
