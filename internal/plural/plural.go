// Package plural spells numbers of things for people.
package plural

import (
	"fmt"
	"strings"
)

// Count spells a number with its noun: 1 entry, 2 entries.
func Count[N int | int64 | uint64](n N, noun string) string {
	return fmt.Sprintf("%d %s", n, Noun(n, noun))
}

// Noun returns a noun as it stands behind a number. It knows regular nouns alone.
func Noun[N int | int64 | uint64](n N, noun string) string {
	stem, y := strings.CutSuffix(noun, "y")
	switch {
	case n == 1:
		return noun
	case y && !strings.ContainsAny(stem[len(stem)-1:], "aeiou"):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"):
		return noun + "es"
	}
	return noun + "s"
}
