//go:build linux || darwin

package runner

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

type pipe struct{ ours, child *os.File }

// pipes are the five connections to a program. They are our own and not those
// of os/exec, whose Wait would wait for every process that inherited them.
type pipes struct {
	stdin, stdout, stderr, checkpoint, progress pipe
}

func openPipes() (*pipes, error) {
	p := new(pipes)
	for _, out := range []*pipe{&p.stdout, &p.stderr, &p.progress} {
		var err error
		if out.ours, out.child, err = os.Pipe(); err != nil {
			p.closeAll()
			return nil, err
		}
	}
	for _, in := range []*pipe{&p.stdin, &p.checkpoint} {
		var err error
		if in.child, in.ours, err = os.Pipe(); err != nil {
			p.closeAll()
			return nil, err
		}
	}
	return p, nil
}

func (p *pipes) each() [5]*pipe {
	return [5]*pipe{&p.stdin, &p.stdout, &p.stderr, &p.checkpoint, &p.progress}
}

// Closing a file twice, or none, is harmless.
func (p *pipes) closeAll() {
	for _, x := range p.each() {
		_ = x.ours.Close()
		_ = x.child.Close()
	}
}

func (p *pipes) closeChild() {
	for _, x := range p.each() {
		_ = x.child.Close()
	}
}

func (p *pipes) closeOurWriters() {
	_ = p.stdin.ours.Close()
	_ = p.checkpoint.ours.Close()
}

// stopReaders makes the sources deliver what the pipes hold now, and then end.
func (p *pipes) stopReaders() {
	past := time.Unix(1, 0)
	for _, x := range []*pipe{&p.stdout, &p.stderr, &p.progress} {
		_ = x.ours.SetReadDeadline(past)
	}
}

func feed(w *os.File, data []byte) {
	_, _ = w.Write(data)
	_ = w.Close()
}

// source reads a pipe until its end or, once stopReaders was called, until it
// is empty. What a program wrote before it exited is in the pipe by then; a
// process that escaped the group and keeps the pipe open must not hold us up.
type source struct {
	file     *os.File
	draining bool
	left     int // how much more to take while draining
}

// maxPipe is the largest pipe that an unprivileged process can make.
const maxPipe = 1 << 20

func newSource(f *os.File) *source { return &source{file: f, left: maxPipe} }

func (s *source) Read(b []byte) (int, error) {
	if !s.draining {
		n, err := s.file.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) || n > 0 {
			return n, err
		}
		s.draining = true
		if err := s.file.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
	}
	if s.left <= 0 {
		return 0, io.EOF
	}
	raw, err := s.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	n, readErr := 0, error(nil)
	err = raw.Read(func(fd uintptr) bool {
		for {
			if n, readErr = syscall.Read(int(fd), b); !errors.Is(readErr, syscall.EINTR) {
				return true // also when it would have to wait
			}
		}
	})
	if err != nil {
		return 0, err
	}
	if n <= 0 {
		return 0, io.EOF // the end, or EAGAIN: empty
	}
	s.left -= n
	return n, nil
}
