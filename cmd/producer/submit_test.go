package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/embedded"
)

func TestSubmit(t *testing.T) {
	s, pool := newPool(t, embedded.Config{MaxPayload: 256 << 10})
	release := make(chan struct{})
	work(t, pool, func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		switch c.ID() {
		case "parked":
			return tallyman.Result{}, tallyman.Reject(errors.New("never"))
		case "slow":
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return tallyman.Result{Body: c.Payload()}, nil
	})
	t.Cleanup(func() { close(release) }) // before the worker drains
	big := strings.Repeat("x", 256<<10)
	for _, c := range []struct {
		name   string
		args   []string
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{"a command is accepted", []string{"k", "hi", "--id", "a"}, "", 0, "a: accepted (sequence 1)\n", ""},
		{"its repetition is absorbed and waited for", []string{"k", "hi", "--id", "a", "--wait", "30s", "--json"}, "", 0,
			`{"id":"a","sequence":1,"absorbed":true,"state":"completed","result":"hi"}` + "\n", ""},
		{"a result alone, byte for byte", []string{"k", "hi", "--id", "a", "--wait", "30s"}, "", 0, "hi", ""},
		{"an empty result is one too", []string{"k", "--id", "empty", "--wait", "30s", "--json"}, "", 0,
			`{"id":"empty","sequence":2,"absorbed":false,"state":"completed","result":""}` + "\n", ""},
		{"a payload from stdin that is no text", []string{"k", "-", "--id", "b", "--wait", "30s", "--json"}, "\xff\x00", 0,
			`{"id":"b","sequence":3,"absorbed":false,"state":"completed","result_base64":"/wA="}` + "\n", ""},
		{"a conflict", []string{"k", "ho", "--id", "a", "--json"}, "", 3, "", "conflict"},
		{"a parked command", []string{"k", "--id", "parked", "--wait", "30s", "--json"}, "", 4,
			`{"id":"parked","sequence":4,"absorbed":false,"state":"parked","error":"never","reason":"rejected"}` + "\n", "parked"},
		{"no outcome in time", []string{"k", "--id", "slow", "--wait", "50ms", "--json"}, "", 5,
			`{"id":"slow","sequence":5,"absorbed":false}` + "\n", "no outcome"},
		{"a payload that is too large", []string{"k", "-", "--id", "big"}, big, 1, "", "too large"},
		{"no id", []string{"k"}, "", 2, "", "--id"},
		{"an invalid id", []string{"k", "--id", "\t"}, "", 2, "", "invalid command id"},
		{"an id that is not text", []string{"k", "--id", "\xff"}, "", 2, "", "not valid UTF-8"},
		{"a payload that is not text", []string{"k", "\xff", "--id", "x"}, "", 2, "", "stdin"},
		{"a file of credentials that is not there", []string{"k", "--id", "x", "--creds", "none"}, "", 2, "", "--creds: open none"},
		{"an invalid kind", []string{"a.b", "--id", "x"}, "", 2, "", "kind"},
		{"a time that has passed", []string{"k", "--id", "x", "--not-after", "-1m"}, "", 2, "", "not-after"},
		{"no such pool", []string{"k", "--id", "x", "--pool", "other"}, "", 1, "", "tallyman init --pool other"},
		{"a late command is parked", []string{"k", "--id", "late", "--not-after", "2001-01-01T00:00:00Z", "--wait", "30s"}, "", 4, "", "expired"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"submit", "--server", s.URL()}, c.args...)
			code, stdout, stderr := clitest.Run(t, t.TempDir(), strings.NewReader(c.stdin), args...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			if (c.code == 0 || c.stdout != "") && stdout != c.stdout {
				t.Errorf("stdout: got %q, want %q", stdout, c.stdout)
			}
			if c.stderr == "" && stderr != "" || !strings.Contains(stderr, c.stderr) {
				t.Errorf("stderr: got %q, want %q", stderr, c.stderr)
			}
		})
	}
}

func TestSubmit_Denied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte(`
		no_auth_user: admin
		authorization { users: [
			{user: admin, password: pw}
			{user: reader, password: pw, permissions: {publish: {deny: "main.commands.>"}}}
		]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := newPool(t, embedded.Config{ConfigFile: conf})
	url := strings.Replace(s.URL(), "://", "://reader:pw@", 1)
	code, _, stderr := clitest.Run(t, dir, nil, "submit", "k", "--id", "a", "--server", url)
	if code != 1 || !strings.Contains(stderr, `permission denied: publish to "main.commands.default.k.a"`) {
		t.Errorf("got exit code %d and %q, want 1 and the denied subject", code, stderr)
	}
	file := filepath.Join(dir, "in.txt")
	if err := os.WriteFile(file, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := clitest.Run(t, dir, nil, "import", file, "--kind", "k", "--id-from-content", "--json", "--server", url)
	if code != 1 || !strings.Contains(stderr, "stopped at line") || !strings.Contains(stderr, `publish to "main.commands.default.k.`) {
		t.Errorf("import: got exit code %d and %q, want 1, and that it stopped because of the denied subject", code, stderr)
	}
	var got summary
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || got.Accepted != 0 || got.Failed == 0 {
		t.Errorf("import: got %q (%v), want a summary with failures alone", stdout, err)
	}
}

// A command for a queue without a consumer waits, which is told once: its name may be misspelt.
func TestQueueWithoutConsumer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte(`
		no_auth_user: admin
		authorization { users: [
			{user: admin, password: pw}
			{user: blind, password: pw, permissions: {publish: {deny: "$JS.API.CONSUMER.>"}}}
		]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, pool := newPool(t, embedded.Config{ConfigFile: conf})
	blind := strings.Replace(s.URL(), "://", "://blind:pw@", 1)
	for name, text := range map[string]string{"in.txt": "a\nb\nc\n", "other.txt": "d\ne\nf\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const warning = "tallyman init --pool main --queue dfault\n"
	for _, c := range []struct {
		name   string
		url    string
		args   string
		code   int
		warned int
	}{
		{"submit to a queue that is there", s.URL(), "submit k --id a", 0, 0},
		{"submit to one that is not", s.URL(), "submit k --id b --queue dfault", 0, 1},
		{"submit and wait", s.URL(), "submit k --id c --queue dfault --wait 50ms", 5, 1},
		{"submit without the right to look", blind, "submit k --id d --queue dfault", 0, 0},
		{"import into a queue that is there", s.URL(), "import in.txt --kind k --id-from-content", 0, 0},
		{"import into one that is not", s.URL(), "import other.txt --kind k --id-from-content --queue dfault", 0, 1},
		{"import without the right to look", blind, "import in.txt --kind k --id-from-content --queue dfault", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := clitest.Run(t, dir, nil, append(strings.Fields(c.args), "--server", c.url)...)
			if code != c.code || strings.Count(stderr, warning) != c.warned || c.code == 0 && c.warned == 0 && stderr != "" {
				t.Errorf("got exit code %d and %q, want %d and the warning %d times", code, stderr, c.code, c.warned)
			}
		})
	}
	if got, want := stored(t, pool), uint64(4+3+3); got != want {
		t.Errorf("commands in the stream: got %d, want %d", got, want)
	}
}

func TestMoment(t *testing.T) {
	t.Parallel()
	var m moment
	before := time.Now()
	if err := m.UnmarshalText([]byte("10m")); err != nil || m.Before(before.Add(10*time.Minute)) {
		t.Errorf("a duration: got %v and %v, want at least ten minutes from now", m, err)
	}
	want := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	if err := m.UnmarshalText([]byte("2030-01-31T12:00:00Z")); err != nil || !m.Equal(want) {
		t.Errorf("a time: got %v and %v, want %v", m, err, want)
	}
	for _, bad := range []string{"", "tomorrow", "-1s", "0s"} {
		if err := m.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q: got %v, want an error", bad, m)
		}
	}
}

// TestSubmit_Interrupted interrupts a submission whose payload does not end.
func TestSubmit_Interrupted(t *testing.T) {
	t.Parallel()
	s, _ := newPool(t, embedded.Config{})
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer feed.Close()
	p := clitest.Start(t, t.TempDir(), in, "submit", "k", "-", "--id", "a", "--server", s.URL())
	// More than the pipe holds: once it is written, the command reads.
	if _, err := feed.WriteString(strings.Repeat("x", 1<<18)); err != nil {
		t.Fatal(err)
	}
	p.Signal(t, syscall.SIGINT)
	if code := p.Wait(t); code != 1 {
		t.Errorf("got exit code %d, want 1", code)
	}
}
