package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/tallyman-go/tallyman"
)

// flushRows is after how many rows a long table is written out, so that it
// needs no more memory than that; columns line up within each part.
const flushRows = 500

// table writes rows in columns. Flush it at the end.
type table struct {
	*tabwriter.Writer
	rows int
}

func newTable(w io.Writer) *table {
	return &table{Writer: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t, "\t")
		}
		fmt.Fprint(t, line(fmt.Sprint(c)))
	}
	fmt.Fprintln(t)
	if t.rows++; t.rows%flushRows == 0 {
		_ = t.Flush() // an error stays in the writer's target and shows up in the last Flush
	}
}

func (t *table) settings(s tallyman.Settings) {
	t.row("lease", s.Lease)
	t.row("max attempts", s.MaxAttempts)
	t.row("backoff", fmt.Sprintf("%v to %v", s.BackoffMin, s.BackoffMax))
	t.row("retention", s.Retention)
	t.row("removal", s.Removal)
	if s.Shards > 1 {
		t.row("shards", s.Shards)
	}
	t.row("commit", s.Commit)
}

// line makes s fit into a cell: what would move the cursor, or turn the
// direction of writing, becomes a space.
func line(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
}

// moment spells a time for people; empty if there is none.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05.000")
}

type settingsView struct {
	Lease       string `json:"lease"`
	MaxAttempts int    `json:"max_attempts"`
	BackoffMin  string `json:"backoff_min"`
	BackoffMax  string `json:"backoff_max"`
	Retention   string `json:"retention"`
	Removal     string `json:"removal"`
	Commit      string `json:"commit"`
	Shards      int    `json:"shards,omitempty"` // if there is more than one
}

func settingsOf(s tallyman.Settings) settingsView {
	v := settingsView{
		Lease: s.Lease.String(), MaxAttempts: s.MaxAttempts,
		BackoffMin: s.BackoffMin.String(), BackoffMax: s.BackoffMax.String(), Retention: s.Retention.String(), Removal: string(s.Removal), Commit: string(s.Commit),
	}
	if s.Shards > 1 {
		v.Shards = s.Shards
	}
	return v
}
