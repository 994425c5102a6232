package demo

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// sayEvery is how often progress is told where there is no terminal.
const sayEvery = 2 * time.Second

// progress tells a person on stderr how far the run is: with a bar on a
// terminal, else with a line now and then. It is used by one goroutine.
type progress struct {
	to    io.Writer
	bars  *mpb.Progress // nil without a terminal
	bar   *mpb.Bar
	total int
	at    int
	said  time.Time
}

func newProgress(total int) *progress {
	p := &progress{to: os.Stderr, total: total, said: time.Now()}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.bars = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(64), mpb.WithAutoRefresh())
		p.bar = p.bars.AddBar(int64(total),
			mpb.PrependDecorators(decor.Name("receipts "), decor.CountersNoUnit("%d / %d")),
			mpb.AppendDecorators(decor.Percentage(), decor.Name("  "), decor.Elapsed(decor.ET_STYLE_GO)))
		p.to = p.bars
	}
	return p
}

// say prints one line, above the bar if there is one.
func (p *progress) say(format string, args ...any) {
	fmt.Fprintf(p.to, format+"\n", args...)
}

// set moves to n.
func (p *progress) set(n int) {
	p.at = n
	switch {
	case p.bar != nil:
		p.bar.SetCurrent(int64(n))
	case time.Since(p.said) >= sayEvery:
		p.said = time.Now()
		p.say("%d of %s", n, plural.Count(p.total, "receipt"))
	}
}

// close ends the bar, and what is printed afterwards goes below it.
func (p *progress) close() {
	if p.bar == nil {
		return
	}
	if p.at < p.total {
		p.bar.Abort(false)
	}
	p.bars.Wait()
	p.bars, p.bar, p.to = nil, nil, os.Stderr
}
