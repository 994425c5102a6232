package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// traffic is what a process has moved, in bytes since it began.
type traffic struct {
	Sent     int64 `json:"sent,omitempty"`     // by a client, to the server
	Received int64 `json:"received,omitempty"` // by a client, from the server
	SQL      int64 `json:"sql,omitempty"`      // statements of a relay, not bytes
	Written  int64 `json:"written,omitempty"`  // by a server, to its disk: whole pages, as the kernel counts them
	Routed   int64 `json:"routed,omitempty"`   // by a server, to the other ones
	// Nodes is the CPU time of each server of a cluster.
	Nodes []time.Duration `json:"nodes,omitempty"`
}

// sent and received count what the connections of this process move.
var sent, received atomic.Int64

// exchanged is the traffic of a client.
func exchanged() (traffic, error) {
	return traffic{Sent: sent.Load(), Received: received.Load(), SQL: statements.Load()}, nil
}

// countingDialer makes connections that are counted: bytes of TCP's payload,
// without the headers of its packets.
type countingDialer struct{}

func (countingDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return countedConn{conn}, nil
}

type countedConn struct{ net.Conn }

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	received.Add(int64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	sent.Add(int64(n))
	return n, err
}

// stored is the traffic of the server in this process, which listens for its
// fellows on one port and finds them on those of the routes.
func stored(port int, routes []*url.URL) (t traffic, err error) {
	if t.Written, err = bytesWritten("/proc/self/io"); err != nil {
		return t, err
	}
	ports := map[int]bool{}
	if port > 0 {
		ports[port] = true
	}
	for _, route := range routes {
		if n, err := strconv.Atoi(route.Port()); err == nil {
			ports[n] = true
		}
	}
	t.Routed, err = bytesSent(ports)
	return t, err
}

// bytesWritten reads how much a process gave to the disk.
func bytesWritten(file string) (int64, error) {
	text, err := procField(file, "write_bytes")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read bytes written: %w", err)
	}
	return n, nil
}

// bytesSent asks the kernel what this process has sent over those of its open
// connections that have one of the ports at either end.
func bytesSent(ports map[int]bool) (int64, error) {
	if len(ports) == 0 {
		return 0, nil
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	var total int64
	for _, entry := range open {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		local, _ := unix.Getsockname(fd) // it is no socket, or gone: nil then
		remote, _ := unix.Getpeername(fd)
		if !ports[portOf(local)] && !ports[portOf(remote)] {
			continue
		}
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			total += int64(info.Bytes_acked)
		}
	}
	return total, nil
}

func portOf(address unix.Sockaddr) int {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// ofAll adds up the traffic of the servers of a cluster.
func ofAll(ctx context.Context, nodes []*process) (all traffic, err error) {
	for _, n := range nodes {
		r, err := n.ask(ctx, "usage")
		if err != nil {
			return all, err
		}
		all.Written += r.Traffic.Written
		all.Routed += r.Traffic.Routed
		all.Nodes = append(all.Nodes, r.CPU)
	}
	return all, nil
}

// tracing is what a server's command line begins with, so that each flush to
// disk is noted in a file; nothing for no file.
func tracing(file string) []string {
	if file == "" {
		return nil
	}
	return []string{"strace", "-f", "--seccomp-bpf", "-qq", "-e", "signal=none", "-e", "trace=fsync,fdatasync,openat", "-o", file}
}

// flushes counts in strace's lines what made a server wait for its disk: calls
// for a flush, and files that were opened so that every write is one.
func flushes(lines string) (n int) {
	for line := range strings.Lines(lines) {
		switch {
		case strings.Contains(line, " resumed>"): // its beginning was counted
		case strings.Contains(line, " fsync("), strings.Contains(line, " fdatasync("):
			n++
		case strings.Contains(line, " openat(") && strings.Contains(line, "O_SYNC"):
			n++
		}
	}
	return n
}
