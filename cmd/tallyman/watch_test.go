package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// write stores a record as a worker would.
func write(t *testing.T, p *tallyman.Pool, r kvstate.Record) {
	t.Helper()
	e, err := p.Records().Read(t.Context(), command.Token(r.ID))
	if err != nil {
		t.Fatal(err)
	}
	r.Revision = e.Revision
	if _, err := p.Records().WriteWait(t.Context(), command.Token(r.ID), &r); err != nil {
		t.Fatal(err)
	}
}

// watching is a watch command whose output is read while it runs.
type watching struct {
	cmd *exec.Cmd
	out io.ReadCloser
	*bufio.Scanner
	seen []string // the newest lines
}

func (s *scene) watch(t *testing.T, args ...string) *watching {
	t.Helper()
	return s.live(t, false, append([]string{"watch"}, args...)...)
}

// live starts a command that runs until it is stopped. With logs its stderr is
// read like its stdout.
func (s *scene) live(t *testing.T, logs bool, args ...string) *watching {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "NATS_URL="+s.url, "TALLYMAN_POOL=main")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if logs {
		cmd.Stderr = cmd.Stdout
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w := &watching{cmd: cmd, out: out, Scanner: bufio.NewScanner(out)}
	enough := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }) // it may have ended
	t.Cleanup(func() {
		enough.Stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return w
}

func (w *watching) line(t *testing.T) string {
	t.Helper()
	if !w.Scan() {
		t.Fatalf("the command ended; %v; it said:\n%s", w.Err(), strings.Join(w.seen, "\n"))
	}
	w.seen = append(w.seen[max(0, len(w.seen)-20):], w.Text())
	return w.Text()
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	write(t, p, kvstate.Record{ID: "a", Kind: "copy", State: kvstate.Claimed, Attempt: 2, Token: 7, Offset: 40, Owner: "w\x1b[2J"})
	write(t, p, kvstate.Record{ID: "b", Kind: "move", State: kvstate.Parked, Reason: kvstate.ReasonRejected, Error: "no\nway"})

	t.Run("one line per change, beginning with where a command stands, and nothing raw", func(t *testing.T) {
		w := s.watch(t, "--id", "a")
		if got, want := w.line(t), `  a  copy  claimed  attempt 2  "w\x1b[2J"  token 7  offset 40`; !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want it to end with %q", got, want)
		}
		write(t, p, kvstate.Record{ID: "other", Kind: "copy", State: kvstate.Claimed})
		write(t, p, kvstate.Record{ID: "a", Kind: "copy", State: kvstate.Waiting, Attempt: 2, Owner: "w", Error: "disk full"})
		if got, want := w.line(t), `  a  copy  waiting  attempt 2  w  "disk full"`; !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want it to end with %q", got, want)
		}
	})
	t.Run("JSON lines of one kind and state", func(t *testing.T) {
		w := s.watch(t, "--current", "--json", "--kind", "move", "--state", "parked", "--state", "completed")
		var got changeView
		if err := json.Unmarshal([]byte(w.line(t)), &got); err != nil {
			t.Fatal(err)
		}
		if got.ID != "b" || got.State != kvstate.Parked || got.Reason != kvstate.ReasonRejected || got.Error != "no\nway" || got.Revision == 0 || got.At.IsZero() {
			t.Errorf("got %+v, want the parked b", got)
		}
	})
	t.Run("an interrupt is a good end", func(t *testing.T) {
		w := s.watch(t, "--current")
		w.line(t)
		if err := w.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		for w.Scan() {
			continue
		}
		if err := w.cmd.Wait(); err != nil {
			t.Errorf("got %v, want exit code 0", err)
		}
	})
	t.Run("and so is a reader that goes away", func(t *testing.T) {
		w := s.watch(t, "--id", "d")
		write(t, p, kvstate.Record{ID: "d", Kind: "copy", State: kvstate.Claimed, Offset: 1})
		w.line(t)
		if err := w.out.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, p, kvstate.Record{ID: "d", Kind: "copy", State: kvstate.Claimed, Offset: 2})
		if err := w.cmd.Wait(); err != nil {
			t.Errorf("got %v, want exit code 0", err)
		}
	})
	t.Run("a state that does not exist is wrong usage", func(t *testing.T) {
		s.run(t, "watch", "--state", "nonsense").expect(t, 2, `--state "nonsense"`, "claimed")
	})
}

func TestRunning(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	table := newRunning()
	take := func(id string, seconds int, state kvstate.State, token, offset uint64) (rows int, progress bool) {
		return table.take(tallyman.Change{Key: command.Token(id), At: zero.Add(time.Duration(seconds) * time.Second),
			Record: &kvstate.Record{ID: id, Kind: "copy", State: state, Token: token, Offset: offset, Attempt: 1, Owner: fmt.Sprintf("w-%d", token)}})
	}
	show := func(limit, width int) string {
		return strings.Join(table.lines(zero.Add(10*time.Second), limit, width), "\n")
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
	take("a", 0, kvstate.Claimed, 1, 100)
	take("b", 0, kvstate.Prepared, 2, 0)
	expect(show(9, 99), "a  copy  attempt 1 at w-1  offset 100  written 10s ago\nb  copy  attempt 1 at w-2  effect announced  written 10s ago")
	if rows, progress := take("a", 4, kvstate.Claimed, 1, 150); rows != 2 || !progress {
		t.Errorf("got %d rows, progress %v; want 2 and true", rows, progress)
	}
	expect(show(9, 99), "a  copy  attempt 1 at w-1  offset 150  12.5/s  written 6s ago\nb  copy  attempt 1 at w-2  effect announced  written 10s ago")
	if _, progress := take("a", 5, kvstate.Claimed, 3, 150); progress {
		t.Error("a takeover is shown as progress")
	}
	expect(show(9, 30), "a  copy  attempt 1 at w-3  ...\nb  copy  attempt 1 at w-2  ...")
	take("ü\x1b", 5, kvstate.Claimed, 4, 0)
	expect(show(2, 99), "a  copy  attempt 1 at w-3  offset 150  written 5s ago\nand 2 more at work")
	if rows, _ := take("a", 6, kvstate.Completed, 3, 150); rows != 2 {
		t.Errorf("%d rows after one has ended, want 2", rows)
	}
	if got := show(9, 200); strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }) {
		t.Errorf("the table holds what is not plain: %q", got)
	}
	table.take(tallyman.Change{Key: "b"}) // deleted
	take("ü\x1b", 7, kvstate.Waiting, 4, 0)
	expect(show(9, 99), "")
}
