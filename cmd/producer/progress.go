package main

import (
	"io"
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress shows how far a file has been read, if somebody can see it. What is
// written to it goes to stderr, above the bar.
type progress struct {
	to   io.Writer
	all  *mpb.Progress // nil: no bar
	bar  *mpb.Bar
	done bool
}

// newProgress returns a bar on stderr if that is a terminal. Size is that of
// the input in bytes, 0 if it is not known.
func newProgress(stderr *os.File, size int64) *progress {
	if !term.IsTerminal(int(stderr.Fd())) {
		return &progress{to: stderr}
	}
	all := mpb.New(mpb.WithOutput(stderr))
	bar := all.AddBar(size,
		mpb.PrependDecorators(decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")),
	)
	return &progress{to: stderr, all: all, bar: bar}
}

// reader counts what is read from in.
func (p *progress) reader(in io.Reader) io.Reader {
	if p.bar == nil {
		return in
	}
	return &counted{in: in, bar: p.bar}
}

type counted struct {
	in  io.Reader
	bar *mpb.Bar
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.bar.IncrBy(n)
	return n, err
}

// Write writes a line for people.
func (p *progress) Write(b []byte) (int, error) {
	if p.all == nil || p.done {
		return p.to.Write(b)
	}
	return p.all.Write(b)
}

// end takes the bar down. Ending twice does nothing.
func (p *progress) end() {
	if p.all == nil || p.done {
		return
	}
	p.done = true
	p.bar.Abort(false) // does nothing if it is complete
	p.all.Wait()
}
