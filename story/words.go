package story

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
)

// quote makes s safe to print and shows where it begins and ends.
func quote(s string) string { return strconv.Quote(s) }

// clean makes a sentence from elsewhere safe to print.
func clean(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// word is s as it is if nobody can mistake it for anything but a name, or else quoted.
func word(s string) string {
	if s == "" {
		return "somebody"
	}
	for _, r := range s {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./=@+#:", r) {
			return quote(s)
		}
	}
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, ":") || strconv.Quote(s) != `"`+s+`"` {
		return quote(s)
	}
	return s
}

// because is ": <why>" in quotes, or nothing.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + quote(why)
}

var numbers = [...]string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"}

// count spells a number of things.
func count(n int, thing string) string {
	number := strconv.Itoa(n)
	if n >= 0 && n < len(numbers) {
		number = numbers[n]
	}
	if n != 1 {
		thing += "s"
	}
	return number + " " + thing
}

// were is "sequence 7 was" or "sequences 7, 9 were".
func were(seqs []uint64) string {
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(seqs), " ", ", "), "[]")
	if len(seqs) == 1 {
		return "sequence " + list + " was"
	}
	return "sequences " + list + " were"
}

// span spells a duration for people.
func span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// held is how a worker held the command: under a token, or without one on an
// attempt that had claimed nothing.
func held(token uint64, attempt int) string {
	switch {
	case token > 0:
		return fmt.Sprintf("token %d", token)
	case attempt > 0:
		return fmt.Sprintf("the lease of attempt %d", attempt)
	}
	return "its lease"
}

// options lists what a person may do to a command with this record, nil for none,
// or to one that was parked aside.
func options(r *kvstate.Record, aside bool) string {
	switch may := desk.Next(r, aside); len(may) {
	case 0:
		return ""
	case 1:
		return " A person may " + may[0] + " it."
	default:
		last := len(may) - 1
		return " A person may " + strings.Join(may[:last], ", ") + " or " + may[last] + " it."
	}
}
