package pipeline

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// wire is a server that answers nothing by itself. In a bubble of testing/synctest
// it lives in simulated time, and with it the pipe that is connected to it.
type wire struct {
	conn    net.Conn
	sid     string      // of the pipe's subscription
	replies chan string // subjects for the answers to what is published
}

func (w *wire) serve() {
	if _, err := io.WriteString(w.conn, `INFO {"server_id":"w","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576}`+"\r\n"); err != nil {
		return
	}
	for r := bufio.NewReader(w.conn); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch part := strings.Fields(line); part[0] {
		case "PING":
			if _, err := io.WriteString(w.conn, "PONG\r\n"); err != nil {
				return
			}
		case "SUB":
			w.sid = part[2]
		case "PUB": // subject, reply, size
			n, _ := strconv.Atoi(part[3])
			if _, err := r.Discard(n + 2); err != nil {
				return
			}
			w.replies <- part[2]
		}
	}
}

func (w *wire) answer(reply, text string) error {
	_, err := fmt.Fprintf(w.conn, "MSG %s %s %d\r\n%s\r\n", reply, w.sid, len(text), text)
	return err
}

// Dial implements nats.CustomDialer.
func (w *wire) Dial(string, string) (net.Conn, error) {
	conn, server := net.Pipe()
	w.conn = server
	go w.serve()
	return conn, nil
}

// simulated opens a pipe inside a synctest bubble.
func simulated(t *testing.T, timeout time.Duration) (*Pipe, *wire) {
	t.Helper()
	w := &wire{replies: make(chan string, 10)}
	nc, err := nats.Connect("nats://192.0.2.1", nats.SetCustomDialer(w), nats.NoReconnect())
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(nc, Config{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Close()
		nc.Close()
		_ = w.conn.Close()
	})
	return p, w
}

// lasting sends a request that nobody answers and notes for how long it lasts.
func lasting(t *testing.T, p *Pipe, note func(time.Duration)) {
	t.Helper()
	sent := time.Now()
	if err := p.Send(&nats.Msg{Subject: "silent"}, func(_ *nats.Msg, err error) {
		if !errors.Is(err, ErrTimeout) {
			t.Errorf("ended with %v, want ErrTimeout", err)
		}
		note(time.Since(sent))
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPipe_Deadline(t *testing.T) {
	t.Parallel()
	const more = 2 * watchEvery // that a request may last beyond its timeout, rounded up to ticks
	check := func(t *testing.T, got, timeout time.Duration) {
		t.Helper()
		if most := (timeout + watchEvery - 1).Truncate(watchEvery) + more; got < timeout || got > most {
			t.Errorf("it lasted %v, want %v to %v", got, timeout, most)
		}
	}
	for _, c := range []struct {
		name    string
		timeout time.Duration
		want    time.Duration
		ticks   uint32 // of the watch when it begins
	}{
		{"of the default", 0, DefaultTimeout, 0},
		{"of 0.1 s", watchEvery, watchEvery, 0},
		{"of 1 ns", 1, 1, 0},
		{"of 0.25 s", 5 * watchEvery / 2, 5 * watchEvery / 2, 0},
		{"of more than an hour", math.MaxInt64, time.Hour, 0},
		{"over the end of the ticks", time.Second, time.Second, math.MaxUint32 - 5},
		{"just before the end of the ticks", time.Second, time.Second, math.MaxUint32 - 12},
		{"at the end of the ticks", time.Second, time.Second, math.MaxUint32},
		{"in the middle of the ticks", time.Second, time.Second, math.MaxInt32 - 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, _ := simulated(t, c.timeout)
				p.mu.Lock()
				p.ticks = c.ticks
				p.mu.Unlock()
				ended := 0
				offsets := []time.Duration{0, 1, watchEvery / 2, watchEvery - 1}
				for i, at := range offsets {
					time.Sleep(at - offsets[max(i-1, 0)])
					lasting(t, p, func(got time.Duration) {
						ended++
						check(t, got, c.want)
					})
				}
				time.Sleep(c.want + time.Second)
				synctest.Wait()
				if ended != len(offsets) {
					t.Errorf("the end of %d requests was told %d times", len(offsets), ended)
				}
			})
		})
	}
	t.Run("starts anew with each answer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			const timeout = time.Second
			p, w := simulated(t, timeout)
			var last time.Time
			answers, ends := 0, 0
			if err := p.SendMany(&nats.Msg{Subject: "many"}, func(_ *nats.Msg, err error) bool {
				if err == nil {
					answers, last = answers+1, time.Now()
					return true
				}
				ends++
				if !errors.Is(err, ErrTimeout) {
					t.Errorf("ended with %v, want ErrTimeout", err)
				}
				check(t, time.Since(last), timeout)
				return false
			}); err != nil {
				t.Fatal(err)
			}
			reply := <-w.replies
			for range 5 {
				time.Sleep(timeout - 1)
				if err := w.answer(reply, "x"); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2 * timeout)
			synctest.Wait()
			if answers != 5 || ends != 1 {
				t.Errorf("got %d answers and %d ends, want 5 and one", answers, ends)
			}
		})
	})
	for _, timeout := range []time.Duration{watchEvery, 3 * watchEvery / 2} {
		t.Run("of "+timeout.String()+" is cut short by no tick that is late", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, _ := simulated(t, timeout)
				late := make(chan time.Duration, 1)
				lasting(t, p, func(time.Duration) { // on the goroutine of the watch
					time.Sleep(2*watchEvery - 2)
					lasting(t, p, func(got time.Duration) { late <- got }) // there is a tick to catch up on, and then one that is due
				})
				if got := <-late; got < timeout {
					t.Errorf("it lasted %v, want at least %v", got, timeout)
				}
			})
		})
	}
}
