package dedupe

import (
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman/command"
)

const upperHex = "0123456789ABCDEF"

// plain marks the bytes that stand for themselves in a token. A dot would
// split a subject and the wildcards would match one, so they are not plain;
// the equals sign introduces an escape.
var plain = func() (table [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/") {
		table[c] = true
	}
	return table
}()

// standsAlone reports whether byte c at index i of an id is its own spelling.
// A leading underscore is not, since such keys belong to the pool.
func standsAlone(c byte, i int) bool { return plain[c] && (c != '_' || i > 0) }

// Token spells id in the alphabet of one subject token: A-Z a-z 0-9 - _ / as
// they are, every other byte and a leading underscore as "=XX" in upper-case
// hexadecimal. An id that needs no escape is returned as it is, without an
// allocation. The error wraps command.ErrInvalidID.
func Token(id string) (command.Token, error) {
	escapes := 0
	for i := range len(id) {
		if !standsAlone(id[i], i) {
			escapes++
		}
	}
	// An id of plain bytes can only be wrong in its length.
	if escapes > 0 || id == "" || len(id) > command.MaxIDLen {
		if err := command.ValidateID(id); err != nil {
			return "", err
		}
	}
	if escapes == 0 {
		return command.Token(id), nil
	}
	var b strings.Builder
	b.Grow(len(id) + 2*escapes)
	for i := range len(id) {
		c := id[i]
		if standsAlone(c, i) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&0x0f])
	}
	return command.Token(b.String()), nil
}

// ParseToken returns the id that t spells. It accepts one spelling per id, the
// one that [Token] gives; every other, such as lower-case hexadecimal or an
// escape of a byte that needs none, gives an error that wraps
// command.ErrMalformed. So distinct keys of a bucket never name the same id.
func ParseToken(t command.Token) (string, error) {
	id := string(t)
	if strings.IndexByte(id, '=') >= 0 {
		var err error
		if id, err = unescape(id); err != nil {
			return "", err
		}
	}
	again, err := Token(id)
	if err != nil {
		return "", fmt.Errorf("dedupe: parse token %.80q: %w: %w", t, command.ErrMalformed, err)
	}
	if again != t {
		return "", fmt.Errorf("dedupe: parse token %.80q: %w: id %.80q is spelled %.80q", t, command.ErrMalformed, id, again)
	}
	return id, nil
}

// unescape replaces every "=XX"; whether the spelling is the canonical one is
// for the caller to find out.
func unescape(s string) (string, error) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '=' {
			b.WriteByte(s[i])
			continue
		}
		hi, lo := -1, -1
		if i+2 < len(s) {
			hi, lo = strings.IndexByte(upperHex, s[i+1]), strings.IndexByte(upperHex, s[i+2])
		}
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("dedupe: parse token %.80q: %w: no two upper-case hexadecimal digits follow the = at byte %d",
				s, command.ErrMalformed, i)
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), nil
}
