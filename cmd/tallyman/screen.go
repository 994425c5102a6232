package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

const (
	// screenRows is how many commands at work are shown at once, where the
	// terminal is high enough.
	screenRows = 20
	// screenEvery is how often the table is drawn.
	screenEvery = 250 * time.Millisecond
)

// watchScreen shows changes as lines and, below them, the commands at work.
func watchScreen(ctx context.Context, pool *tallyman.Pool, filter tallyman.Filter, states []tallyman.State, stdout *os.File) error {
	shards := pool.Shards()
	start := make([]uint64, len(shards))
	for i, at := range shards {
		var err error
		if start[i], err = at.Records.LastRevision(ctx); err != nil {
			return err
		}
	}
	asked := filter.Current
	filter.Current = true // for the table: what is at work already
	s := newScreen(stdout)
	defer s.end()
	for change, err := range pool.Watch(ctx, filter) {
		if err != nil {
			return err
		}
		quiet, err := s.take(change)
		if err != nil {
			return err
		}
		wanted := len(states) == 0 || change.Record != nil && slices.Contains(states, change.Record.State)
		if wanted && !quiet && (asked || change.Revision > start[change.Shard]) {
			if _, err := fmt.Fprintln(s, changeLine(change, len(shards))); err != nil {
				return err
			}
		}
	}
	return nil
}

// screen draws a table at the foot of a terminal, and lines above it. It
// belongs to one goroutine; drawing is done by another, from the table.
type screen struct {
	table *running
	all   *mpb.Progress
	limit int
	rows  []*mpb.Bar // one per line: bars without a bar, since nobody knows how much there is to do
}

func newScreen(stdout *os.File) *screen {
	limit := screenRows
	if _, height, err := term.GetSize(int(stdout.Fd())); err == nil {
		limit = max(min(limit, height-3), 1)
	}
	return &screen{table: newRunning(), limit: limit, all: mpb.New(mpb.WithOutput(stdout), mpb.WithRefreshRate(screenEvery))}
}

// take takes a change into the table and makes room for it. It reports whether
// the table alone shows it: progress changes a row, and needs no line.
func (s *screen) take(c tallyman.Change) (quiet bool, err error) {
	n, quiet := s.table.take(c)
	n = min(n, s.limit)
	for len(s.rows) > n {
		last := len(s.rows) - 1
		s.rows[last].Abort(true)
		s.rows = s.rows[:last]
	}
	for len(s.rows) < n {
		i := len(s.rows)
		row, err := s.all.Add(0, mpb.BarFillerFunc(func(w io.Writer, st decor.Statistics) error {
			return s.draw(w, i, st.AvailableWidth)
		}))
		if err != nil {
			return quiet, err
		}
		s.rows = append(s.rows, row)
	}
	return quiet, nil
}

// draw writes row i. Rows are drawn side by side.
func (s *screen) draw(w io.Writer, i, width int) error {
	if lines := s.table.lines(time.Now(), s.limit, width); i < len(lines) {
		_, err := io.WriteString(w, lines[i])
		return err
	}
	return nil
}

// Write writes lines above the table.
func (s *screen) Write(b []byte) (int, error) { return s.all.Write(b) }

// end takes the table down.
func (s *screen) end() {
	for _, row := range s.rows {
		row.Abort(true)
	}
	s.all.Wait()
}
