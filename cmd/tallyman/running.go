package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

// running is the table of commands that are at work, as far as their records
// say so. It is safe for concurrent use.
type running struct {
	mu   sync.Mutex
	rows map[string]*row // by key
	keys []string        // in the order in which they appeared
}

// row is a command at work.
type row struct {
	record  *kvstate.Record
	from    uint64    // offset when this owner's work was first seen
	fromAt  time.Time // and when that was
	written time.Time
}

func newRunning() *running { return &running{rows: map[string]*row{}} }

// take takes a change into the table. It returns how many rows there are then,
// and whether it was but progress of one that was there.
func (t *running) take(c tallyman.Change) (rows int, progress bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := string(c.Key)
	r := c.Record
	if r == nil || r.State != kvstate.Claimed && r.State != kvstate.Prepared {
		if _, there := t.rows[key]; there {
			delete(t.rows, key)
			t.keys = slices.DeleteFunc(t.keys, func(k string) bool { return k == key })
		}
		return len(t.keys), false
	}
	old := t.rows[key]
	switch {
	case old == nil:
		t.rows[key] = &row{record: r, from: r.Offset, fromAt: c.At, written: c.At}
		t.keys = append(t.keys, key)
	case old.record.Token != r.Token || old.record.Owner != r.Owner:
		*old = row{record: r, from: r.Offset, fromAt: c.At, written: c.At} // taken over
	default:
		progress = old.record.State == r.State
		old.record, old.written = r, c.At
	}
	return len(t.keys), progress
}

// lines is the table in at most limit lines of at most width characters.
func (t *running) lines(now time.Time, limit, width int) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	shown := t.keys
	left := 0
	if len(shown) > limit {
		left = len(shown) - (limit - 1)
		shown = shown[:limit-1]
	}
	lines := make([]string, 0, limit)
	for _, k := range shown {
		lines = append(lines, fit(t.rows[k].text(now), width))
	}
	if left > 0 {
		lines = append(lines, fit(fmt.Sprintf("and %d more at work", left), width))
	}
	return lines
}

func (r *row) text(now time.Time) string {
	rec := r.record
	text := fmt.Sprintf("%s  %s  attempt %d at %s", name(rec.ID), name(rec.Kind), rec.Attempt, name(rec.Owner))
	if rec.State == kvstate.Prepared {
		text += "  effect announced"
	}
	if rec.Offset > 0 {
		text += fmt.Sprintf("  offset %d", rec.Offset)
	}
	if took := r.written.Sub(r.fromAt); took > 0 && rec.Offset > r.from {
		text += fmt.Sprintf("  %s/s", rate(float64(rec.Offset-r.from)/took.Seconds()))
	}
	return text + fmt.Sprintf("  written %v ago", max(now.Sub(r.written), 0).Truncate(time.Second))
}

// rate spells a number per second with three digits that count.
func rate(perSecond float64) string {
	if perSecond >= 100 {
		return strconv.FormatFloat(perSecond, 'f', 0, 64)
	}
	return strconv.FormatFloat(perSecond, 'g', 3, 64)
}

// fit makes a line of plain ASCII that is no wider than width: how wide other
// characters are is for the terminal to say, and a line that wraps spoils the table.
func fit(s string, width int) string {
	s = strings.Trim(strconv.QuoteToASCII(s), `"`)
	s = strings.ReplaceAll(s, `\"`, `"`)
	if len(s) <= width {
		return s
	}
	if width < 3 {
		return strings.Repeat(".", max(width, 0))
	}
	return s[:width-3] + "..."
}
