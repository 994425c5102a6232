package cli

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf16"
)

// escape spells the characters of a line of JSON that are not to be seen, such
// as the control characters above ASCII and those that turn the direction of
// writing, as \uXXXX. In JSON they can only stand in strings.
func escape(line []byte) []byte {
	harmless := func(r rune) bool { return r == '\n' || unicode.IsPrint(r) }
	if bytes.IndexFunc(line, func(r rune) bool { return !harmless(r) }) < 0 {
		return line
	}
	safe := make([]byte, 0, len(line)+16)
	for _, r := range string(line) {
		if harmless(r) {
			safe = append(safe, string(r)...)
		} else if hi, lo := utf16.EncodeRune(r); hi != unicode.ReplacementChar {
			safe = fmt.Appendf(safe, `\u%04x\u%04x`, hi, lo)
		} else {
			safe = fmt.Appendf(safe, `\u%04x`, r)
		}
	}
	return safe
}
