//go:build linux || darwin

package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

// hour stands for "not during this test".
const hour = time.Hour

func shell(script string) *runner.Exec {
	return &runner.Exec{Argv: []string{"/bin/sh", "-c", script}}
}

// fifo returns the path of a named pipe, and a channel that gets everything
// written to it once every process that had it open for writing is dead.
func fifo(t *testing.T) (path string, dead <-chan string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	c := make(chan string, 1)
	go func() {
		data, err := os.ReadFile(path)
		if err != nil {
			data = []byte(err.Error())
		}
		c <- string(data)
	}()
	return path, c
}

func TestExec_Handle(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB, far more than a pipe holds

	t.Run("payload in, result out, byte for byte", func(t *testing.T) {
		t.Parallel()
		payload := []byte("a\x00b\xff\n")
		got, err := shell("cat").Handle(t.Context(), claimOf(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Payload: payload}}))
		if err != nil || !bytes.Equal(got.Body, payload) {
			t.Errorf("got %q, %v; want %q", got.Body, err, payload)
		}
	})

	t.Run("the command is described in the environment", func(t *testing.T) {
		t.Parallel()
		e := shell(`printf '%s|' "$TALLYMAN_ID" "$TALLYMAN_KIND" "$TALLYMAN_QUEUE" "$TALLYMAN_ATTEMPT" "$TALLYMAN_TOKEN" "$TALLYMAN_OFFSET" "$TALLYMAN_CONTENT_TYPE" "$TALLYMAN_CHECKPOINT_FD" "$TALLYMAN_PROGRESS_FD" "$COLOUR" "$(pwd)"`)
		e.Env = map[string]string{"COLOUR": "blue", "TALLYMAN_ID": "forged"}
		e.Dir = "/"
		got, err := e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "né 1", Kind: "resize", Queue: "slow", ContentType: "text/plain\x00"},
			Attempt: 3, Token: 42, Offset: 7,
		}))
		want := "né 1|resize|slow|3|42|7|text/plain|3|4|blue|/|"
		if err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
	})

	t.Run("a program need not read its input", func(t *testing.T) {
		t.Parallel()
		got, err := shell("echo done").Handle(t.Context(), claimOf(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "x", Payload: big}, Offset: 1, Checkpoint: big,
		}))
		if err != nil || string(got.Body) != "done\n" {
			t.Errorf("got %q, %v; want done", got.Body, err)
		}
	})

	t.Run("a large checkpoint is read to its end while the payload waits", func(t *testing.T) {
		t.Parallel()
		got, err := shell("wc -c <&3; wc -c").Handle(t.Context(), claimOf(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "x", Payload: big[:1000]}, Offset: 1, Checkpoint: big,
		}))
		if f := strings.Fields(string(got.Body)); err != nil || !slices.Equal(f, []string{"1048576", "1000"}) {
			t.Errorf("got %q, %v; want 1048576 1000", f, err)
		}
	})

	t.Run("without a checkpoint descriptor 3 is empty", func(t *testing.T) {
		t.Parallel()
		got, err := shell("wc -c <&3").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		if f := strings.TrimSpace(string(got.Body)); err != nil || f != "0" {
			t.Errorf("got %q, %v; want 0", f, err)
		}
	})

	t.Run("a result of exactly max_result is stored, one byte more is rejected", func(t *testing.T) {
		t.Parallel()
		e := shell("cat")
		e.MaxResult = 100_000
		got, err := e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Payload: big[:100_000]}}))
		if err != nil || len(got.Body) != 100_000 {
			t.Errorf("got %d bytes, %v; want 100000", len(got.Body), err)
		}
		got, err = e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Payload: big[:100_001]}}))
		wantError(t, err, "park rejected", "larger than max_result (100000 bytes)", "nothing cut")
		if got.Body != nil {
			t.Errorf("got %d bytes beside the error, want none", len(got.Body))
		}
	})

	t.Run("endless output is rejected and its writer killed", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		_, err := shell("exec 9>"+path+"; yes").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "park rejected", "524288 bytes")
		receive(t, "the death of yes", dead)
	})

	t.Run("stderr is logged line by line", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		e := shell(`printf 'one\ntwo' >&2`)
		e.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if _, err := e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{})); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"msg=one id=img-7 kind=resize attempt=1 stream=stderr\n", "msg=two id"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("log: got %q, want %q in it", log.String(), want)
			}
		}
	})
}

func TestExec_ExitStatus(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script, verdict string
		want                  string // the whole error, unless empty
	}{
		{"0 completes", "echo bad >&2; exit 0", "complete", ""},
		{"1 is a failed attempt with the tail of stderr", "echo no disk >&2; exit 1", "retry", "runner: sh: exit status 1: no disk"},
		{"nothing on stderr is said", "exit 9", "retry", "runner: sh: exit status 9; it wrote nothing to stderr"},
		{"65 rejects", "echo not an image >&2; exit 65", "park rejected", "runner: sh: exit status 65: not an image"},
		{"75 is a failed attempt", "echo busy >&2; exit 75", "retry", "runner: sh: exit status 75: busy"},
		{"75 with retry-after as last line", "echo busy >&2; echo retry-after: 1m30s >&2; exit 75", "retry after 1m30s", ""},
		{"75 with seconds, any case", "echo 'Retry-After: 5' >&2; exit 75", "retry after 5s", ""},
		{"75 with retry-after before the last line", "echo retry-after: 30s >&2; echo busy >&2; exit 75", "retry", ""},
		{"75 with a retry-after that makes no sense", "echo retry-after: soon >&2; exit 75", "retry", ""},
		{"retry-after counts with 75 only", "echo retry-after: 30s >&2; exit 1", "retry", ""},
		{"127 of the shell", "tallyman-no-such-program", "retry", ""},
		{"a signal is named", "echo before >&2; kill -9 $$", "retry", "runner: sh was ended by signal 9 (killed): before"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := shell(tt.script).Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
			if got := verdictOf(err); got != tt.verdict {
				t.Errorf("verdict: got %q, want %q (%v)", got, tt.verdict, err)
			}
			if tt.want != "" && (err == nil || err.Error() != tt.want) {
				t.Errorf("error: got %q, want %q", err, tt.want)
			}
		})
	}

	t.Run("a flood on stderr does not flood the log", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		e := shell(`yes "a line of forty characters, about forty." | head -c 4000000 >&2; echo the last >&2; exit 1`)
		e.Logger = slog.New(slog.NewTextHandler(&log, nil))
		_, err := e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "the last")
		lines := strings.Count(log.String(), "stream=stderr")
		if lines < 20_000 || lines > 30_000 || strings.Count(log.String(), "no longer logged") != 1 {
			t.Errorf("logged %d lines of 42 bytes, want those of 1 MiB and one word about the rest", lines)
		}
	})
	t.Run("a long stderr is kept to its last 2 KiB of valid UTF-8", func(t *testing.T) {
		t.Parallel()
		_, err := shell(`i=0; while [ $i -lt 3000 ]; do printf 'é%s' $i >&2; i=$((i+1)); done; printf '\377last' >&2; exit 1`).
			Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "exit status 1: ...", "é2999?last")
		if n := len(err.Error()); n > 2<<10+100 {
			t.Errorf("error has %d bytes, want about 2 KiB", n)
		}
		if s := err.Error(); strings.ToValidUTF8(s, "") != s {
			t.Errorf("error is not valid UTF-8: %q", s)
		}
	})
}

func TestExec_CannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(dir, "bare")
	if err := os.WriteFile(bare, []byte("echo hi\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		e    runner.Exec
		want string
	}{
		{"empty argv", runner.Exec{}, "no program to run"},
		{"not in PATH", runner.Exec{Argv: []string{"tallyman-no-such-program"}}, "executable file not found in $PATH; install it"},
		{"no such file", runner.Exec{Argv: []string{"./gone"}, Dir: dir}, "no such file or directory; the program"},
		{"no such directory", runner.Exec{Argv: []string{"/bin/sh"}, Dir: dir + "/gone"}, "no such file or directory"},
		{"not executable", runner.Exec{Argv: []string{plain}}, "permission denied; make it executable"},
		{"no interpreter line", runner.Exec{Argv: []string{bare}}, "exec format error; a script has to begin with"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := tt.e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
			wantError(t, err, "retry", tt.want)
		})
	}
	t.Run("not at all once ctx has ended", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(tallyman.ErrDraining)
		_, err := shell("exit 0").Handle(ctx, claimOf(tallyman.DetachedConfig{}))
		if !errors.Is(err, tallyman.ErrDraining) {
			t.Errorf("got %v, want %v", err, tallyman.ErrDraining)
		}
	})
}

func TestExec_Progress(t *testing.T) {
	t.Parallel()
	type saved struct {
		offset uint64
		state  string
	}
	record := func(into *[]saved) func(uint64, []byte) error {
		return func(offset uint64, state []byte) error {
			*into = append(*into, saved{offset, string(state)})
			return nil
		}
	}

	t.Run("states are text, base64 or absent", func(t *testing.T) {
		t.Parallel()
		var got []saved
		claim := claimOf(tallyman.DetachedConfig{OnProgress: record(&got)})
		if _, err := shell(`printf '1\n2 page 2 \n3 base64:AP8=\n3 \n4 unfinished' >&4`).Handle(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		want := []saved{{1, ""}, {2, "page 2 "}, {3, "\x00\xff"}, {3, ""}}
		if !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})

	t.Run("all lines are saved in order before a failing program's error is returned", func(t *testing.T) {
		t.Parallel()
		var got, want []saved
		for i := range uint64(500) {
			want = append(want, saved{i, fmt.Sprintf("s%d", i)})
		}
		claim := claimOf(tallyman.DetachedConfig{OnProgress: record(&got)})
		_, err := shell(`i=0; while [ $i -lt 500 ]; do echo "$i s$i" >&4; i=$((i+1)); done; exit 3`).Handle(t.Context(), claim)
		wantError(t, err, "retry", "exit status 3")
		if !slices.Equal(got, want) {
			t.Errorf("got %d lines %+v, want %d in order", len(got), got, len(want))
		}
		if claim.Offset() != 499 {
			t.Errorf("offset: got %d, want 499", claim.Offset())
		}
	})

	t.Run("a takeover finds what the previous attempt saved", func(t *testing.T) {
		t.Parallel()
		claim := claimOf(tallyman.DetachedConfig{})
		_, err := shell(`echo "5 half way" >&4; exit 1`).Handle(t.Context(), claim)
		wantError(t, err, "retry", "exit status 1")
		got, err := shell(`echo "$TALLYMAN_OFFSET $(cat <&3)"`).Handle(t.Context(), claim)
		if want := "5 half way\n"; err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
	})

	for _, tt := range []struct{ name, line, want string }{
		{"no number", "half", `malformed progress line "half": it must begin with an offset`},
		{"negative", "-1", "must begin with an offset"},
		{"an empty line", "", `malformed progress line ""`},
		{"bad base64", "7 base64:@@", `malformed progress line "7 base64:@@": the state is not base64`},
	} {
		t.Run("a malformed line fails the attempt and kills the group: "+tt.name, func(t *testing.T) {
			t.Parallel()
			path, dead := fifo(t)
			_, err := shell("exec 9>"+path+"; echo '"+tt.line+"' >&4; sleep 1000").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
			wantError(t, err, "retry", tt.want)
			receive(t, "the death of the group", dead)
		})
	}

	t.Run("a malformed last line fails the attempt even after exit 0", func(t *testing.T) {
		t.Parallel()
		_, err := shell("echo oops >&4").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "malformed progress line")
	})

	t.Run("an offset that goes back fails the attempt", func(t *testing.T) {
		t.Parallel()
		_, err := shell("echo 5 >&4; echo 4 >&4; sleep 1000").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "save progress at offset 4", "lies before the saved 5")
	})

	t.Run("an endless line fails the attempt", func(t *testing.T) {
		t.Parallel()
		_, err := shell("yes | tr -d '\\n' >&4").Handle(t.Context(), claimOf(tallyman.DetachedConfig{}))
		wantError(t, err, "retry", "a line is longer than 2097152 bytes")
	})

	t.Run("a lost lease kills the group at once and is returned", func(t *testing.T) {
		t.Parallel()
		path, dead := fifo(t)
		e := shell("trap 'echo term >&9' TERM; exec 9>" + path + "; echo 1 >&4; sleep 1000; sleep 1000")
		e.KillAfter = hour
		_, err := e.Handle(t.Context(), claimOf(tallyman.DetachedConfig{OnProgress: func(uint64, []byte) error {
			return fmt.Errorf("save: %w", tallyman.ErrLeaseLost)
		}}))
		if !errors.Is(err, tallyman.ErrLeaseLost) {
			t.Errorf("got %v, want %v", err, tallyman.ErrLeaseLost)
		}
		if got := receive(t, "the death of the group", dead); got != "" {
			t.Errorf("the program was told %q, want nothing but SIGKILL", got)
		}
	})
}
