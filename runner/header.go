package runner

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// headerValue makes any text safe as a header's value, and reversible:
// every byte outside visible ASCII (0x21 to 0x7E), and "%" itself, becomes %XX.
func headerValue(s string) string {
	return percentEncode(s, func(b byte) bool { return b > 0x20 && b < 0x7f && b != '%' })
}

// headerText makes s valid as a header's value and leaves what is valid as it
// is: a content type has blanks, and its "%" means what it says.
func headerText(s string) string {
	return percentEncode(strings.TrimSpace(s), func(b byte) bool { return b >= 0x20 && b < 0x7f })
}

func percentEncode(s string, keep func(byte) bool) string {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if b := s[i]; keep(b) {
			out.WriteByte(b)
		} else {
			out.WriteString("%" + string([]byte{digits[b>>4], digits[b&15]}))
		}
	}
	return out.String()
}

// retryAfter reads a Retry-After header: seconds or a date, 0 to maxRetryAfter.
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseUint(value, 10, 63); err == nil {
		return time.Duration(min(n, uint64(maxRetryAfter/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}

// isOwnHeader tells the headers that the file may not set: those that describe
// the command, and those that net/http derives from the request.
func isOwnHeader(name string) bool {
	name = http.CanonicalHeaderKey(name)
	switch name {
	case "Idempotency-Key", "X-Idempotency-Key", "Host", "Content-Length", "Transfer-Encoding", "Connection", "Trailer", "Upgrade":
		return true
	}
	return strings.HasPrefix(name, "Tallyman-")
}

func validHeader(name, value string) bool {
	if name == "" {
		return false
	}
	for i := 0; i < len(name); i++ {
		b := name[i]
		letter := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(b)) {
			return false
		}
	}
	for i := 0; i < len(value); i++ {
		if b := value[i]; b < 0x20 && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}
