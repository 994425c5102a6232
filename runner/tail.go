package runner

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman"
)

const (
	// maxLogLine is where a line without an end is cut for the log.
	maxLogLine = 8 << 10
	// maxLogged is how much of an attempt's stderr goes into the log, in bytes.
	maxLogged = 1 << 20
)

// tail keeps the last tailSize bytes written to it, and hands whole lines to
// log. It never fails, and is not safe for concurrent use.
type tail struct {
	kept []byte
	cut  bool
	log  func(line string) // may be nil
	line []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	// Cutting at twice the size makes the copying rare.
	if len(t.kept) > 2*tailSize {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-tailSize:]...)
		t.cut = true
	}
	if t.log == nil {
		return len(b), nil
	}
	for rest := b; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		t.line = append(t.line, line[:min(len(line), maxLogLine-len(t.line))]...)
		if whole {
			t.flush()
		}
		rest = after
	}
	return len(b), nil
}

// flush logs what was written since the last newline.
func (t *tail) flush() {
	if t.log != nil && len(t.line) > 0 {
		t.log(strings.ToValidUTF8(string(t.line), "\uFFFD"))
	}
	t.line = t.line[:0]
}

// String returns the last tailSize bytes at most, as valid UTF-8 without
// surrounding blanks. "..." at the front says that something was left out.
func (t *tail) String() string {
	b, cut := t.kept, t.cut
	if len(b) > tailSize {
		b, cut = b[len(b)-tailSize:], true
	}
	if cut { // possibly within a character
		for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.RuneStart(b[0]); i++ {
			b = b[1:]
		}
	}
	const mark = "..."
	s := strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
	if cut {
		return mark + s
	}
	return s
}

func stderrLog(logger *slog.Logger, claim *tallyman.Claim) func(string) {
	if logger == nil {
		return nil
	}
	attrs := []slog.Attr{slog.String("id", claim.ID()), slog.String("kind", claim.Kind()), slog.Int("attempt", claim.Attempt())}
	left := maxLogged
	return func(line string) {
		if left <= 0 {
			return
		}
		logger.LogAttrs(context.Background(), slog.LevelInfo, line, append(attrs, slog.String("stream", "stderr"))...)
		if left -= len(line) + 1; left <= 0 {
			logger.LogAttrs(context.Background(), slog.LevelWarn, "stderr goes on and is no longer logged in this attempt", append(attrs, slog.Int("limit", maxLogged))...)
		}
	}
}
