//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/kvstate"
)

// natsCLI returns the path of the nats CLI: the one in the PATH, or the pinned
// version, compiled if need be.
func natsCLI(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("nats"); err == nil {
		return path
	}
	out, err := exec.Command("../../.ci/tool", "nats").Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	why := err.Error()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		why += ": " + string(failed.Stderr)
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("no nats CLI: %s", why)
	}
	t.Skipf("no nats CLI (%s); get it with: make nats-cli && PATH=$PWD/bin:$PATH go test ./tests/e2e/", why)
	return ""
}

// TestNatsCLI does with the stock CLI what the documents say one can.
func TestNatsCLI(t *testing.T) {
	t.Parallel()
	path := natsCLI(t)
	s := newStand(t, short)
	s.worker(t)
	home := t.TempDir()
	run := func(args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, append([]string{"--server", s.url}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		if err := cmd.Run(); err != nil {
			t.Fatalf("nats %s: %v\n%s%s", strings.Join(args, " "), err, &out, &log)
		}
		return out.Bytes()
	}

	run("pub", "main.commands.default.log.img-7", `{"w":80}`, "-H", "Nats-Msg-Id:img-7")
	if r := s.receipt(t, "img-7"); string(r.Result) != `{"w":80}` || r.Kind != "log" {
		t.Errorf("receipt of a command published by hand: got %q of kind %q, want %q of kind %q", r.Result, r.Kind, `{"w":80}`, "log")
	}
	// Nor does it take a header.
	run("pub", "main.commands.default.log.bare", "x")
	s.receipt(t, "bare")
	// What is altered on its way is parked.
	run("pub", "main.commands.default.log.odd", "x", "-H", "Tallyman-Digest:00000000000000000000000000000000")
	s.settle(t)
	malformed, err := s.pool.Records().Read(t.Context(), kvstate.MalformedKey(3))
	if err != nil {
		t.Fatal(err)
	}
	if malformed.Record == nil || malformed.Record.Reason != kvstate.ReasonMalformed {
		t.Errorf("command with a wrong digest: got %+v, want parked as malformed", malformed.Record)
	}

	raw := run("kv", "get", "main", "img-7", "--raw")
	rec, err := kvstate.Decode(raw)
	if err != nil {
		// The CLI ends what it prints with a newline.
		rec, err = kvstate.Decode(bytes.TrimSuffix(raw, []byte("\n")))
	}
	if err != nil {
		t.Fatalf("nats kv get printed %q: %v", raw, err)
	}
	if rec.ID != "img-7" || rec.State != kvstate.Completed {
		t.Errorf("nats kv get: got the record of %q in state %s, want %q completed", rec.ID, rec.State, "img-7")
	}

	if out := run("stream", "ls", "--all"); !strings.Contains(string(out), "main_commands") || !strings.Contains(string(out), bucketStream) {
		t.Errorf("nats stream ls shows neither stream nor bucket of the pool:\n%s", out)
	}
	var info jetstream.ConsumerInfo
	out := run("consumer", "info", "main_commands", "default", "--json")
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatalf("nats consumer info: %v\n%s", err, out)
	}
	if info.Config.AckWait != short.Lease || info.NumPending != 0 || info.NumAckPending != 0 || info.Delivered.Consumer < 3 {
		t.Errorf("nats consumer info: got ack wait %v, %d pending, %d outstanding, %d delivered; want %v, 0, 0, at least 3",
			info.Config.AckWait, info.NumPending, info.NumAckPending, info.Delivered.Consumer, short.Lease)
	}

	// It watches a pool live: what is there, and then what comes.
	watch := exec.CommandContext(t.Context(), path, "--server", s.url, "kv", "watch", "main")
	watch.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
	lines, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1000)
	go func() {
		defer close(seen)
		for in := bufio.NewScanner(lines); in.Scan(); {
			seen <- in.Text()
		}
	}()
	sees := func(key string) {
		t.Helper()
		for line := range seen {
			if strings.Contains(line, key) {
				return
			}
		}
		t.Errorf("nats kv watch ended without showing %s", key)
	}
	sees("bare")
	s.submit(t, "log", "live-1", "x")
	sees("live-1")
	if err := watch.Process.Kill(); err != nil {
		t.Error(err)
	}
	for range seen { // until the pipe has ended
	}
	_ = watch.Wait() // killed
	s.settle(t)
	checkBooks(t, s)
}
