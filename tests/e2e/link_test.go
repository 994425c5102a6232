//go:build unix

package e2e

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// link is a TCP proxy in front of the server, which can be cut.
type link struct {
	listener net.Listener
	to       string
	work     sync.WaitGroup
	spent    chan struct{} // gets one when a quota is used up

	mu     sync.Mutex
	refuse bool
	quota  int64                     // bytes of each client that reach the server; 0 for all
	conns  map[net.Conn]*atomic.Bool // both ends of all connections, and whether they lose what they carry
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{to: u.Host, conns: map[net.Conn]*atomic.Bool{}, spent: make(chan struct{}, 16)}
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	l.work.Go(l.accept)
	t.Cleanup(func() {
		l.listener.Close()
		l.down()
		l.work.Wait()
	})
	return l
}

func (l *link) url() string { return "nats://" + l.listener.Addr().String() }

func (l *link) accept() {
	for {
		in, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.work.Go(func() { l.carry(in) })
	}
}

func (l *link) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer out.Close()
	l.mu.Lock()
	if l.refuse {
		l.mu.Unlock()
		return
	}
	dead := new(atomic.Bool)
	l.conns[in], l.conns[out] = dead, dead
	quota := l.quota
	l.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(wire{in, dead}, out) // ends when either end does
		in.Close()
	})
	if quota > 0 {
		if n, _ := io.CopyN(out, in, quota); n == quota {
			l.spent <- struct{}{}
			_, _ = io.Copy(io.Discard, in) // the client believes that it is sent
		}
	} else {
		_, _ = io.Copy(wire{out, dead}, in)
	}
	out.Close()
	back.Wait()
	l.mu.Lock()
	delete(l.conns, in)
	delete(l.conns, out)
	l.mu.Unlock()
}

// wire loses what is written to it once its connection is dead.
type wire struct {
	to   io.Writer
	dead *atomic.Bool
}

func (w wire) Write(b []byte) (int, error) {
	if w.dead.Load() {
		return len(b), nil
	}
	return w.to.Write(b)
}

// silence makes the connections of this moment carry nothing any more, without
// a word to either end, as a router does that has forgotten them. New ones work.
func (l *link) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, dead := range l.conns {
		dead.Store(true)
	}
}

// swallow lets only so many bytes of each client that connects from now on
// reach the server. The client does not notice.
func (l *link) swallow(after int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quota = after
}

// cut ends the connections of this moment.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

// down cuts and refuses connections until up.
func (l *link) down() {
	l.mu.Lock()
	l.refuse = true
	l.mu.Unlock()
	l.cut()
}

func (l *link) up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = false
}
