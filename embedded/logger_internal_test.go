package embedded

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
)

// A cluster whose port for routes was taken in the moment before it listened did
// not start, since the server says so in words alone.
func TestLogger_KeepsTheCause(t *testing.T) {
	t.Parallel()
	l := &logger{}
	if err := l.failure(); err != nil {
		t.Errorf("got %v before anything failed", err)
	}
	taken := &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	l.Fatalf("Error listening on router port: %d - %v", 7, taken)
	l.Fatalf("another")
	err := l.failure()
	if want := "Error listening on router port: 7 - listen tcp: bind: " + syscall.EADDRINUSE.Error(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v, which is not known as a port that is taken", err)
	}
}
