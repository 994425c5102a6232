package runner_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/runner"
)

func TestParse(t *testing.T) {
	t.Parallel()

	t.Run("every field", func(t *testing.T) {
		t.Parallel()
		got, err := runner.Parse("/etc/pool.yaml", []byte(`
handlers:
  - kind: invoice-*
    exec: [./bill.sh, --retries, 3, "", true]
    timeout: 1m30s
    max_attempts: 7
    eager: true
    max_result: 1000
    dir: work
    kill_after: 500ms
    env: &env {LANG: C, DEBUG: 1, EMPTY: ""}
  - http: https://example.org/hook?key=1
    kind: hook
    headers:
      X-Api-Key: s3cret
  - kind: now
    exec: [now]
    dir: /srv
    kill_after: 0s
    env: *env
`))
		if err != nil {
			t.Fatal(err)
		}
		env := map[string]string{"LANG": "C", "DEBUG": "1", "EMPTY": ""}
		want := []runner.Spec{
			{
				Kind: "invoice-*", Exec: []string{"./bill.sh", "--retries", "3", "", "true"}, Timeout: 90 * time.Second,
				MaxAttempts: 7, Eager: true, MaxResult: 1000, Dir: "/etc/work", KillAfter: 500 * time.Millisecond, Env: env, Line: 3,
			},
			{Kind: "hook", HTTP: "https://example.org/hook?key=1", Headers: map[string]string{"X-Api-Key": "s3cret"}, Line: 12},
			{Kind: "now", Exec: []string{"now"}, Dir: "/srv", KillAfter: -1, Env: env, Line: 16},
		}
		if !reflect.DeepEqual(got.Handlers, want) {
			t.Errorf("got  %+v\nwant %+v", got.Handlers, want)
		}
		mux, err := got.Mux(runner.Options{})
		if err != nil {
			t.Fatal(err)
		}
		kinds := mux.Kinds()
		slices.Sort(kinds)
		if want := []string{"hook", "invoice-*", "now"}; !slices.Equal(kinds, want) {
			t.Errorf("kinds: got %q, want %q", kinds, want)
		}
	})
}

func TestParse_Errors(t *testing.T) {
	t.Parallel()
	const ok = "handlers:\n  - kind: a\n    exec: [x]\n    "
	const add = "add at least one, such as:\n  handlers:\n    - kind: resize\n      exec: [./resize.sh]"
	const list = "an entry may have kind, exec, http, confirm, timeout, max_attempts, eager, max_result; with exec also env, dir, kill_after; with http also headers"
	for _, tt := range []struct{ name, file, want string }{
		{"empty file", "", "p.yaml:1: the file is empty; " + add},
		{"comments only", "# nothing\n", "p.yaml:1: the file is empty; " + add},
		{"empty list", "handlers: []\n", "p.yaml:1: handlers is empty; " + add},
		{"no value", "\nhandlers:\n", `p.yaml:2: handlers must be a list; begin each entry with "- kind: ..."`},
		{"no list", "handlers: {kind: a}\n", `p.yaml:1: handlers must be a list; begin each entry with "- kind: ..."`},
		{"a list at the top", "- kind: a\n", `p.yaml:1: the file must hold "name: value" lines`},
		{"not YAML", "handlers:\n  - kind: [a\n    exec: b\n", "p.yaml:3: not valid YAML: ',' or ']' must be specified; correct the syntax (indent with spaces, quote text that holds \": \" or begins with a special character)"},
		{"two documents", ok + "\n---\nhandlers: []\n", `p.yaml:6: a second document begins here; put all handlers into one list and remove the "---"`},
		{"unknown field at the top", "queue: a\n" + ok, `p.yaml:1: unknown field "queue"; the only field at the top is handlers`},
		{"unknown field", ok + "retries: 3\n", `p.yaml:4: unknown field "retries"; ` + list},
		{"field twice", ok + "timeout: 1s\n    timeout: 2s\n", `p.yaml:5: "timeout" is there already, in line 4; remove one of them`},
		{"kind twice", ok + "\n  - kind: a\n    exec: [y]\n", `p.yaml:5: kind "a" has a handler already, in line 2; remove one of them`},
		{"no kind", "handlers:\n  - exec: [x]\n", `p.yaml:2: entry has no kind; add kind: NAME, or a glob such as invoice-*`},
		{"bad kind", "handlers:\n  - exec: [x]\n    kind: a.b\n", `p.yaml:3: kind "a.b" is neither a name (1 to 64 of A-Z a-z 0-9 - _) nor a glob such as invoice-*; correct it`},
		{"bad glob", "handlers:\n  - exec: [x]\n    kind: 'a[*'\n", `p.yaml:3: kind "a[*" is neither a name (1 to 64 of A-Z a-z 0-9 - _) nor a glob such as invoice-*; correct it`},
		{"neither", "handlers:\n  - kind: a\n", "p.yaml:2: entry has neither exec nor http; add exec: [PROGRAM, ARG...] or http: URL"},
		{"both", ok + "http: http://a\n", "p.yaml:4: entry has both exec and http; keep one of them"},
		{"headers with exec", ok + "headers: {A: b}\n", "p.yaml:4: headers is for http and this entry uses exec; remove it"},
		{"env with http", "handlers:\n  - kind: a\n    http: http://a\n    env: {A: b}\n", "p.yaml:4: env is for exec and this entry uses http; remove it"},
		{"exec as text", "handlers:\n  - kind: a\n    exec: ./x --y\n", `p.yaml:3: exec must be a list of the program and its arguments, such as exec: [./resize.sh, --fast]; no shell is involved (for one, write exec: [sh, -c, "..."])`},
		{"empty exec", "handlers:\n  - kind: a\n    exec: []\n", "p.yaml:3: exec is empty; name a program, such as exec: [./resize.sh]"},
		{"empty program", "handlers:\n  - kind: a\n    exec: ['']\n", "p.yaml:3: the first item of exec is empty; name a program"},
		{"exec of mappings", "handlers:\n  - kind: a\n    exec:\n      - x\n      - a: b\n", "p.yaml:5: item 2 of exec is not text; put it into quotes"},
		{"duration without unit", ok + "timeout: 30\n", `p.yaml:4: timeout "30" has no unit; write 30s for seconds (units: ms s m h)`},
		{"no duration", ok + "timeout: soon\n", `p.yaml:4: timeout "soon" is not a duration; write it like 500ms, 30s, 5m or 1h30m`},
		{"negative duration", ok + "kill_after: -2s\n", `p.yaml:4: kill_after "-2s" is negative; write it like 30s`},
		{"timeout of nothing", ok + "timeout: 0s\n", "p.yaml:4: timeout must be longer than 0; leave it out for no limit"},
		{"empty timeout", ok + "timeout:\n", "p.yaml:4: timeout has no single value; write timeout: VALUE"},
		{"attempts", ok + "max_attempts: 0\n", `p.yaml:4: max_attempts "0" is not a whole number from 1 to 1000000; leave it out for the pool's setting`},
		{"max_result with unit", ok + "max_result: 1MB\n", `p.yaml:4: max_result "1MB" is not a whole number from 1 to 67108864; it counts bytes; leave it out for 524288`},
		{"eager", ok + "eager: 'yes'\n", `p.yaml:4: eager "yes" is neither true nor false; write one of them`},
		{"env of ours", ok + "env: {TALLYMAN_ID: x}\n", "p.yaml:4: env TALLYMAN_ID is set by the worker for each command; choose another name"},
		{"env with =", ok + "env: {'A=B': x}\n", `p.yaml:4: env "A=B" is no possible variable: names hold no "=", and neither name nor value a NUL byte; correct it`},
		{"env without value", ok + "env:\n      A:\n", `p.yaml:5: A of env is not text; put it into quotes ("" for nothing)`},
		{"merge key", ok + "env: {<<: {A: b}}\n", "p.yaml:4: the merge key << is not supported; repeat the fields"},
		{"unknown alias", ok + "dir: *gone\n", "p.yaml:4: dir has no single value; write dir: VALUE"},
		{"url", "handlers:\n  - kind: a\n    http: localhost:80\n", `p.yaml:3: http "localhost:80" is not a usable URL: it does not begin with http:// or https://; write it as http://HOST:PORT/PATH`},
		{"header of ours", "handlers:\n  - kind: a\n    http: http://a\n    headers: {tallyman-id: x}\n", "p.yaml:4: header tallyman-id is set by the worker for each command; remove it"},
		{"bad header", "handlers:\n  - kind: a\n    http: http://a\n    headers: {\"a b\": x}\n", `p.yaml:4: header "a b" is no valid HTTP header; names are like X-Api-Key, values have no control characters`},
		{"confirm as mapping", ok + "confirm: {a: b}\n", `p.yaml:4: confirm must be a list of the program and its arguments, such as confirm: [./resize.sh, --fast]; no shell is involved (for one, write confirm: [sh, -c, "..."])`},
		{"confirm url", ok + "confirm: ./look.sh\n", `p.yaml:4: confirm "./look.sh" is not a usable URL: it does not begin with http:// or https://; write it as http://HOST:PORT/PATH, or as a list to run a program`},
		{"intent of ours", ok + "env: {TALLYMAN_INTENT: x}\n", "p.yaml:4: env TALLYMAN_INTENT is set by the worker for each command; choose another name"},
		{"two at once", ok + "timeout: 1\n    max_attempts: x\n", "p.yaml:4: timeout \"1\" has no unit; write 1s for seconds (units: ms s m h)\n" +
			`p.yaml:5: max_attempts "x" is not a whole number from 1 to 1000000; leave it out for the pool's setting`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := runner.Parse("p.yaml", []byte(tt.file))
			if err == nil {
				t.Fatalf("got %+v, want an error", got)
			}
			if err.Error() != tt.want {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			if ce := (*runner.ConfigError)(nil); !errors.As(err, &ce) || ce.File != "p.yaml" {
				t.Errorf("got %T, want a ConfigError of p.yaml", err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("run.sh", "#!/bin/sh\n", 0o700)
	write("plain.sh", "#!/bin/sh\n", 0o600)

	if _, err := runner.Load(filepath.Join(dir, "gone.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
	path := write("good.yaml", "handlers:\n  - {kind: a, exec: [./run.sh]}\n  - {kind: b, exec: [sh]}\n", 0o600)
	if _, err := runner.Load(path); err != nil {
		t.Errorf("got %v, want no error: programs are found from the file's folder and in PATH", err)
	}
	path = write("bad.yaml", `handlers:
  - {kind: a, exec: [./gone.sh]}
  - {kind: b, exec: [tallyman-no-such-program]}
  - {kind: c, exec: [./plain.sh]}
  - {kind: d, exec: [sh], dir: nowhere}
`, 0o600)
	_, err := runner.Load(path)
	want := strings.NewReplacer("FILE", path, "DIR", dir).Replace(
		`FILE:2: kind "a": program ./gone.sh does not exist; paths are relative to dir (DIR)
FILE:3: kind "b": program "tallyman-no-such-program" is not in the worker's PATH; install it, or give its path (./tallyman-no-such-program for one in DIR)
FILE:4: kind "c": program ./plain.sh cannot be executed; run: chmod +x DIR/plain.sh
FILE:5: kind "d": dir DIR/nowhere is not a directory; create it or correct dir`)
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// FuzzParse looks for panics and for errors that do not say where.
func FuzzParse(f *testing.F) {
	f.Add("handlers:\n  - kind: a\n    exec: [x]\n")
	f.Add("a: &x [*x]\nhandlers: *x\n")
	f.Add("handlers: &x\n  - *x\n  - <<: *x\n")
	f.Add("? [a]\n: b\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := runner.Parse("p.yaml", []byte(text))
		if err != nil && !strings.HasPrefix(err.Error(), "p.yaml:") {
			t.Errorf("got %q, want it to begin with the file's name", err)
		}
	})
}
