package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"golang.org/x/sys/unix"
)

// terminal opens a pair of ends: what a person sees, and what a command writes to.
func terminal(t *testing.T) (person, command *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	command, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return person, command
}

func TestWatch_OnATerminal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	write(t, p, kvstate.Record{ID: "a", Kind: "copy", State: kvstate.Claimed, Attempt: 1, Token: 7, Offset: 40, Owner: "w"})

	person, end := terminal(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "watch")
	cmd.Env = append(os.Environ(), asCommand+"=1", "NATS_URL="+s.url, "TALLYMAN_POOL=main")
	cmd.Stdout, cmd.Stderr = end, t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end.Close()
	enough := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }) // it may have ended
	t.Cleanup(func() { enough.Stop(); _ = cmd.Process.Kill() })

	var seen bytes.Buffer
	see := func(want string) {
		t.Helper()
		part := make([]byte, 4096)
		for !strings.Contains(seen.String(), want) {
			n, err := person.Read(part)
			if err != nil {
				t.Fatalf("%v, before it showed %q; it showed:\n%q", err, want, seen.String())
			}
			seen.Write(part[:n])
		}
	}
	see("a  copy  attempt 1 at w  offset 40") // the table, and no line: nothing has changed
	write(t, p, kvstate.Record{ID: "a", Kind: "copy", State: kvstate.Claimed, Attempt: 1, Token: 7, Offset: 90, Owner: "w"})
	see("offset 90") // in the table alone
	write(t, p, kvstate.Record{ID: "a", Kind: "copy", State: kvstate.Completed, Attempt: 1, Token: 7, Offset: 90, Owner: "w"})
	see("a  copy  completed  attempt 1  w  token 7  offset 90")
	if strings.Contains(seen.String(), "a  copy  claimed") {
		t.Errorf("what only the table is to show has a line:\n%q", seen.String())
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, person) // ends with an error once the command has
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
}
