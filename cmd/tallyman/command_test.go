package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestShow(t *testing.T) {
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	submit(t, p, tallyman.Command{ID: "a b", Kind: "echo", Payload: []byte("hello")})
	submit(t, p, tallyman.Command{ID: "-raw", Kind: "echo", Payload: []byte{0xff, 0xfe}})
	submit(t, p, tallyman.Command{ID: "bad", Kind: "bad", Payload: []byte("x")})

	t.Run("a command that nobody has written about is pending", func(t *testing.T) {
		o := s.run(t, "show", "a b", "--json")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "id", "a b")
		equal(t, got, "state", "pending")
		equal(t, got, "sequence", "1")
		equal(t, got["command"].(map[string]any), "payload", "hello")
		s.run(t, "show", "a b").expect(t, 0, "pending", "hello")
	})

	work(t, p, "a b", "-raw", "bad")

	t.Run("a receipt holds the result", func(t *testing.T) {
		o := s.run(t, "show", "--json", "a b")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "state", "completed")
		equal(t, got, "result", "hello")
		equal(t, got, "attempt", "1")
		equal(t, got, "seqs", "[1]")
		step := got["trail"].([]any)[0].(map[string]any)
		equal(t, step, "state", "completed")
		for _, key := range []string{"kind", "queue", "digest", "token", "offset", "owner", "at"} {
			_, inRecord := got[key]
			if _, inStep := step[key]; !inRecord && !inStep {
				t.Errorf("key %s is missing", key)
			}
		}
		s.run(t, "show", "a b").expect(t, 0, "completed", "hello", "WHEN")
	})
	t.Run("bytes that are no text are base64", func(t *testing.T) {
		o := s.run(t, "show", "--json", "--", "-raw")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "result_base64", "//4=")
		if _, ok := got["result"]; ok {
			t.Error("the result is there as text too")
		}
		s.run(t, "show", "--", "-raw").expect(t, 0, "result (base64)", "//4=")
	})
	t.Run("a parked command is there whole", func(t *testing.T) {
		o := s.run(t, "show", "--json", "bad")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "state", "parked")
		equal(t, got, "reason", "rejected")
		equal(t, got["command"].(map[string]any), "payload", "x")
	})
	t.Run("what is not filed under its id is found by the key that parked names", func(t *testing.T) {
		record, err := kvstate.Encode(&kvstate.Record{ID: "a b", Kind: "echo", State: kvstate.Parked, Reason: kvstate.ReasonConflict, Seqs: []uint64{9}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.js(t).Publish(t.Context(), "$KV.main._conflict/9", record); err != nil {
			t.Fatal(err)
		}
		s.run(t, "parked").expect(t, 0, "a b (_conflict/9)")
		o := s.run(t, "show", "_conflict/9", "--json")
		o.expect(t, 0)
		equal(t, o.object(t), "id", "a b")
		equal(t, o.object(t), "reason", "conflict")
		s.run(t, "why", "_conflict/9").expect(t, 0, "_conflict/9 is parked", `with the id "a b"`, "A person may discard it.")
		for _, act := range []string{"show", "why", "cancel"} {
			s.run(t, act, "_conflict/10").expect(t, 1, "not found")
		}
		// An id that looks like such a key comes first.
		submit(t, s.pool(t), tallyman.Command{ID: "_conflict/9", Kind: "echo"})
		s.run(t, "why", "_conflict/9").expect(t, 0, "_conflict/9 is pending")
		s.run(t, "show", "_pool").expect(t, 1, "not found")
	})
	t.Run("a damaged record is named with what can be done", func(t *testing.T) {
		if _, err := s.js(t).Publish(t.Context(), "$KV.main.x=20y", []byte("garbage")); err != nil {
			t.Fatal(err)
		}
		s.run(t, "show", "x y").expect(t, 1, "damaged", "nats kv get main x=20y --raw", "nats kv purge main x=20y")
		s.run(t, "list").expect(t, 0, "left out 1 with a damaged record; tallyman audit names them")
	})
	t.Run("an unknown id is an error", func(t *testing.T) {
		s.run(t, "show", "nobody").expect(t, 1, `command "nobody": not found in pool "main"`, "never submitted")
	})
	t.Run("an impossible id is wrong usage", func(t *testing.T) {
		s.run(t, "show", "").expect(t, 2, "invalid command id")
		s.run(t, "show", "a\nb").expect(t, 2, "control character")
	})
}

func TestListAndParked(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	for _, id := range []string{"a", "b", "c"} {
		submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
	}
	submit(t, p, tallyman.Command{ID: "x", Kind: "bad"})
	work(t, p, "a", "b", "c", "x")

	ids := func(args ...string) []string {
		t.Helper()
		o := s.run(t, append(args, "--json")...)
		o.expect(t, 0)
		out := []string{}
		for l := range strings.Lines(o.stdout) {
			var v summaryView
			if err := json.Unmarshal([]byte(l), &v); err != nil {
				t.Fatalf("%v in %q", err, l)
			}
			out = append(out, v.ID)
		}
		sort.Strings(out)
		return out
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"list"}, []string{"a", "b", "c", "x"}},
		{[]string{"list", "--state", "completed"}, []string{"a", "b", "c"}},
		{[]string{"list", "--kind", "bad"}, []string{"x"}},
		{[]string{"list", "--kind", "bad", "--state", "completed"}, []string{}},
		{[]string{"parked"}, []string{"x"}},
		{[]string{"parked", "--kind", "echo"}, []string{}},
	} {
		if got := ids(c.args...); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.args, got, c.want)
		}
	}
	if got := ids("list", "--limit", "2"); len(got) != 2 {
		t.Errorf("with a limit of 2: got %v", got)
	}
	s.run(t, "list").expect(t, 0, "ID", "completed", "rejected")
	s.run(t, "list", "--state", "sleeping").expect(t, 2, "sleeping", "parked")
	s.run(t, "parked").expect(t, 0, "REASON", "rejected", "never again")
}

func TestWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	submit(t, p, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("out")})
	submit(t, p, tallyman.Command{ID: "x", Kind: "bad"})
	work(t, p, "a", "x")
	if o := s.run(t, "wait", "a"); o.code != 0 || o.stdout != "out" {
		t.Errorf("got %+v, want the result alone", o)
	}
	o := s.run(t, "wait", "a", "--json")
	o.expect(t, 0)
	equal(t, o.object(t), "state", "completed")
	equal(t, o.object(t), "result", "out")
	o = s.run(t, "wait", "x", "--json")
	o.expect(t, 4, "parked as rejected")
	equal(t, o.object(t), "reason", "rejected")
	s.run(t, "wait", "nobody", "--timeout", "50ms").expect(t, 5, `no outcome of "nobody" within 50ms; tallyman why`)
}

func TestDecode(t *testing.T) {
	t.Parallel()
	record, err := kvstate.Encode(&kvstate.Record{ID: "a", Kind: "echo", State: kvstate.Completed, Result: []byte("r"), Seqs: []uint64{7}})
	if err != nil {
		t.Fatal(err)
	}
	value, err := command.Marshal(map[string]any{"n": 1, "raw": []byte{0xff}, "list": []any{true, nil, "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, in, want string }{
		{"a value of any shape", string(value), `{"list":[true,null,"x"],"n":1,"raw_base64":"/w=="}`},
		{"a map with keys that are no text", "\x81\x01\xc3", `{"1":true}`},
		{"a map with a list as its key", "\x81\x91\x01\xc3", `{"[1]":true}`},
		{"a number that JSON has no word for", "\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01", `"NaN"`},
		{"JSON, as the settings are", "{\"lease\": \"30s\"}\n", `{"lease":"30s"}`},
		{"text, as an absorbed id is", "img-7", `"img-7"`},
		{"text of many scripts", "Zürich\n", `"Zürich"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := run(t, "", c.in, "decode")
			o.expect(t, 0)
			if got := strings.TrimSuffix(o.stdout, "\n"); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	t.Run("a record, as show prints it", func(t *testing.T) {
		t.Parallel()
		o := run(t, "", string(record)+"\n", "decode") // as nats kv get --raw prints it
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "id", "a")
		equal(t, got, "state", "completed")
		equal(t, got, "result", "r")
		equal(t, got, "seqs", "[7]")
	})
	for name, in := range map[string]string{
		"nothing":                       "",
		"a length that is not there":    "\xdf\xff\xff\xff\xff",
		"a nest without a bottom":       strings.Repeat("\x91", 100_000),
		"a type that nobody knows":      "\xc7\x03\x55abc",
		"bytes that are neither":        "\xc1\xff\xfe",
		"a value with something behind": "\x81\xa1a\x01\x00",
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			run(t, "", in, "decode").expect(t, 1, "malformed")
		})
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	o := run(t, "", "abc", "digest")
	if want := "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\n"; o.code != 0 || o.stdout != want {
		t.Errorf("got %+v, want %s", o, want)
	}
}

func TestConnect_Refused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	o := s.run(t, "status", "--server", strings.Replace(s.url, "op:op@", "op:s3cret@", 1))
	o.expect(t, 1, "nats://xxxxx@127.0.0.1:", "name a user with --creds, --nkey or --context")
	if strings.Contains(o.stderr, "s3cret") || strings.Contains(o.stderr, "is a server running") {
		t.Errorf("got %q, want neither the password nor a doubt about the server", o.stderr)
	}
}

// A command that waits for JetStream says what it waits for, and what to do.
func TestConnect_NoJetStream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte("accounts: {A: {users: [{user: op, password: op}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Dir: dir, ConfigFile: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	cmd := exec.Command(os.Args[0], "status", "--server", as("op", server.URL()))
	cmd.Env = append(os.Environ(), asCommand+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(stderr).ReadString('\n')
	if want := "is JetStream switched on there"; err != nil || !strings.Contains(said, want) {
		t.Errorf("got %q, %v, want a line with %q", said, err, want)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if rest, err := io.ReadAll(stderr); err != nil || !strings.Contains(string(rest), "JetStream is not available") {
		t.Errorf("after an interrupt: got %q, %v", rest, err)
	}
	_ = cmd.Wait() // it fails
}

func TestUsage(t *testing.T) {
	t.Parallel()
	run(t, "", "", "fly").expect(t, 2, "fly")
	run(t, "", "").expect(t, 2)
	run(t, "", "", "--help").expect(t, 0, "audit", "decode", "TALLYMAN_POOL")
	run(t, "", "", "--version").expect(t, 0)
	run(t, "", "", "show").expect(t, 2, "<id>", "see tallyman show --help")
	run(t, "", "", "init", "--lease", "10").expect(t, 2, "--lease", "such as 30s", "see tallyman init --help")
	run(t, "", "", "resolve", "a").expect(t, 2, "--result TEXT or --result-file FILE")
	run(t, "", "", "list", "--context", "nosuch").expect(t, 1, `"nosuch"`, "nats context ls")
}
