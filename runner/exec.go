package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman"
)

// Defaults and limits of handlers.
const (
	// DefaultMaxResult is how many bytes of result are accepted. It leaves room
	// for the rest of the record within the server's default limit of 1 MiB.
	DefaultMaxResult = 512 << 10
	// DefaultKillAfter is the time between SIGTERM and SIGKILL.
	DefaultKillAfter = 2 * time.Second

	// tailSize is how much of stderr or of an error's body goes into the error.
	tailSize = 2 << 10
	// saveGrace is how long after SIGKILL the last progress may still be saved.
	saveGrace = 2 * time.Second
)

// Exit statuses with a meaning, from sysexits.h. Any other but 0 is a failed attempt.
const (
	exitRejected = 65 // EX_DATAERR
	exitRetry    = 75 // EX_TEMPFAIL
)

// Exec handles a command by starting a program in a process group of its own.
// docs/handlers.md describes what the program sees: payload on stdin, the
// previous checkpoint on descriptor 3, progress lines on descriptor 4, result
// on stdout, verdict as exit status. It works on Linux and macOS; elsewhere
// every attempt fails with an error that says so.
type Exec struct {
	// Argv is the program and its arguments. A program without a slash is
	// looked up in the worker's PATH, a relative one starts from Dir. Required.
	Argv []string
	// Dir is the working directory; empty means the worker's.
	Dir string
	// Env is added to the worker's environment. TALLYMAN_* variables that
	// describe the command win over it.
	Env map[string]string
	// MaxResult is the largest result in bytes. Default DefaultMaxResult.
	MaxResult int
	// KillAfter is how long the program has between SIGTERM and SIGKILL when
	// it is told to stop. Default DefaultKillAfter; negative means no SIGTERM.
	// A lost lease kills at once in any case.
	KillAfter time.Duration
	// Logger gets what the program writes to stderr, a record for each line.
	// Nil: only the tail is kept, for errors.
	Logger *slog.Logger
}

// Handle runs the program once. When ctx ends, Handle returns no later than
// KillAfter plus 2 seconds afterwards, provided that claim.Progress heeds its
// own context.
func (e *Exec) Handle(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return tallyman.Result{}, errors.New("runner: no program to run; Exec.Argv is empty")
	}
	if cause := context.Cause(ctx); cause != nil {
		return tallyman.Result{}, fmt.Errorf("runner: %s was not started: %w", e.name(), cause)
	}
	end, err := e.run(ctx, claim, claim.Progress)
	if err != nil {
		return tallyman.Result{}, err
	}
	return e.judge(ctx, end)
}

// saveFunc makes progress durable, as tallyman.Claim.Progress does.
type saveFunc func(ctx context.Context, offset uint64, state []byte) error

// ending is how an attempt went.
type ending struct {
	stdout  []byte
	stderr  string
	aborted error  // why the worker killed the program, if it did of its own accord
	stopped bool   // a signal was sent because ctx had ended
	status  int    // exit status, if signal is empty
	signal  string // what ended it, such as "signal 9 (killed)"
}

// judge is total: every ending has a verdict. What the worker did to the
// program outranks what the program says about itself.
func (e *Exec) judge(ctx context.Context, end ending) (tallyman.Result, error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, tallyman.ErrLeaseLost):
		return tallyman.Result{}, fmt.Errorf("runner: %s was killed: %w", e.name(), cause)
	case end.aborted != nil && end.stopped:
		return tallyman.Result{}, fmt.Errorf("runner: %s was stopped: %w; %w", e.name(), cause, end.aborted)
	case end.aborted != nil:
		return tallyman.Result{}, fmt.Errorf("runner: %s: %w", e.name(), end.aborted)
	case end.stopped:
		return tallyman.Result{}, fmt.Errorf("runner: %s was stopped: %w%s", e.name(), cause, told(end.stderr))
	case end.signal != "":
		return tallyman.Result{}, fmt.Errorf("runner: %s was ended by %s%s", e.name(), end.signal, said(end.stderr))
	case end.status == 0:
		return tallyman.Result{Body: end.stdout}, nil
	}
	err := fmt.Errorf("runner: %s: exit status %d%s", e.name(), end.status, said(end.stderr))
	switch end.status {
	case exitRejected:
		return tallyman.Result{}, tallyman.Reject(err)
	case exitRetry:
		if d, ok := retryLine(end.stderr); ok {
			return tallyman.Result{}, tallyman.RetryAfter(d, err)
		}
	}
	return tallyman.Result{}, err
}

// retryLine finds "retry-after: 30s" as the last line that is not blank. A
// bare number counts seconds, as in HTTP.
func retryLine(stderr string) (time.Duration, bool) {
	stderr = strings.TrimSpace(stderr)
	name, value, ok := strings.Cut(stderr[strings.LastIndexByte(stderr, '\n')+1:], ":")
	if !ok || !strings.EqualFold(strings.TrimSpace(name), "retry-after") {
		return 0, false
	}
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	d, err := time.ParseDuration(value)
	return d, err == nil && d >= 0
}

// said renders the tail of stderr for the error of an ending that needs an explanation.
func said(stderr string) string {
	if stderr == "" {
		return "; it wrote nothing to stderr"
	}
	return ": " + stderr
}

func told(stderr string) string {
	if stderr == "" {
		return ""
	}
	return ": " + stderr
}

func (e *Exec) name() string { return filepath.Base(e.Argv[0]) }

func (e *Exec) maxResult() int {
	if e.MaxResult > 0 {
		return e.MaxResult
	}
	return DefaultMaxResult
}

func (e *Exec) killAfter() time.Duration {
	if e.KillAfter == 0 {
		return DefaultKillAfter
	}
	return max(e.KillAfter, 0)
}

func tooLarge(limit int) error {
	return tallyman.Reject(fmt.Errorf("the result is larger than max_result (%d bytes); nothing of it was stored, and nothing cut. Raise max_result, or store the result elsewhere and return its address", limit))
}

// ownVariables describe the command. The file's env may not set them.
var ownVariables = []string{
	"TALLYMAN_ID", "TALLYMAN_KIND", "TALLYMAN_QUEUE", "TALLYMAN_ATTEMPT", "TALLYMAN_TOKEN",
	"TALLYMAN_OFFSET", "TALLYMAN_CONTENT_TYPE", "TALLYMAN_CHECKPOINT_FD", "TALLYMAN_PROGRESS_FD",
	"TALLYMAN_INTENT", // of confirm programs alone
}

func environment(base []string, own map[string]string, claim *tallyman.Claim) []string {
	env := base
	for _, name := range sortedKeys(own) {
		env = append(env, name+"="+own[name])
	}
	values := []string{
		claim.ID(), claim.Kind(), claim.Queue(), strconv.Itoa(claim.Attempt()), strconv.FormatUint(claim.Token(), 10),
		strconv.FormatUint(claim.Offset(), 10), claim.ContentType(), "3", "4",
	}
	for i, value := range values {
		// A content type is the producer's word for it, and no variable can hold a NUL.
		env = append(env, ownVariables[i]+"="+strings.ReplaceAll(value, "\x00", ""))
	}
	return env
}
