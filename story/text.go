package story

import (
	"fmt"
	"strings"
	"time"
)

// timeLayout spells the time of an event; all are of one length.
const timeLayout = "2006-01-02 15:04:05.000"

// Text is the story for people: a line per event, with its time in loc and how
// long that was after the first. It ends with a newline.
func (s *Story) Text(loc *time.Location) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is %s\n\n", word(s.ID), word(s.State))
	var first time.Time
	for _, e := range s.Events {
		if first.IsZero() {
			first = e.At
		}
		at, after := strings.Repeat(" ", len(timeLayout)), ""
		if !e.At.IsZero() {
			at, after = e.At.In(loc).Format(timeLayout), offset(e.At.Sub(first))
		}
		fmt.Fprintf(&b, "%s  %9s  %s\n", at, after, e.Text)
	}
	if len(s.Unknown) > 0 {
		b.WriteString("\nNot known:\n")
		for _, u := range s.Unknown {
			fmt.Fprintf(&b, "- %s\n", u)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", s.Verdict)
	return b.String()
}

// offset spells a time after the first event.
func offset(d time.Duration) string {
	sign := "+"
	if d < 0 {
		sign, d = "-", -d
	}
	if d < 1000*time.Second {
		return fmt.Sprintf("%s%.3fs", sign, d.Seconds())
	}
	return sign + d.Round(time.Second).String()
}
