// Package bar shows on a terminal how far something is. Where nobody sees it,
// nothing is shown.
package bar

import (
	"io"
	"os"

	"github.com/vbauerster/mpb/v8"
	"golang.org/x/term"
)

// Bar is one bar at the bottom of a terminal. What is written to it goes above
// the bar. It is used by one goroutine at a time; others may read from what
// Reader returns, and write, until it ends.
type Bar struct {
	to  io.Writer
	all *mpb.Progress // nil: no bar is shown, or not any more
	bar *mpb.Bar
}

// On returns a bar that is shown if f is a terminal. Total may be 0 as long as it is
// not known; options say how the bar looks.
func On(f *os.File, total int64, options ...mpb.BarOption) *Bar {
	if !term.IsTerminal(int(f.Fd())) {
		return &Bar{to: f}
	}
	all := mpb.New(mpb.WithOutput(f))
	return &Bar{to: f, all: all, bar: all.AddBar(total, options...)}
}

// Set moves the bar.
func (b *Bar) Set(current, total int64) {
	if b.all != nil {
		b.bar.SetTotal(total, false)
		b.bar.SetCurrent(current)
	}
}

// Reader moves the bar by each byte that is read from in.
func (b *Bar) Reader(in io.Reader) io.Reader {
	if b.all == nil {
		return in
	}
	return &counted{in: in, bar: b.bar}
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

// Write writes lines for people.
func (b *Bar) Write(text []byte) (int, error) {
	if b.all == nil {
		return b.to.Write(text)
	}
	return b.all.Write(text)
}

// End takes the bar down. Ending twice does nothing.
func (b *Bar) End() {
	if b.all == nil {
		return
	}
	b.bar.Abort(false) // does nothing if it is complete
	b.all.Wait()
	b.all = nil
}
