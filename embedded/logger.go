package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// logger passes the server's log lines on and keeps the first fatal one, which
// is the only way that a failed start is reported. It does not exit.
type logger struct {
	to *slog.Logger // nil is silent

	mu    sync.Mutex
	fatal error
}

func (l *logger) log(level slog.Level, format string, v []any) {
	if l.to != nil && l.to.Enabled(context.Background(), level) {
		l.to.Log(context.Background(), level, fmt.Sprintf(format, v...), "from", "nats-server")
	}
}

func (l *logger) Noticef(format string, v ...any) { l.log(slog.LevelDebug, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.log(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.log(slog.LevelError, format, v) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}

func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	if l.fatal == nil {
		l.fatal = fatal{fmt.Sprintf(format, v...), v}
	}
	l.mu.Unlock()
	l.log(slog.LevelError, format, v)
}

// fatal is why a server gave up. It is, by errors.Is, what the server names as
// the cause: a port that somebody else took just before is worth another try.
type fatal struct {
	text string
	args []any
}

func (f fatal) Error() string { return f.text }

func (f fatal) Unwrap() (causes []error) {
	for _, a := range f.args {
		if err, ok := a.(error); ok {
			causes = append(causes, err)
		}
	}
	return causes
}

func (l *logger) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
