package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// row is one line or row of a file, or what is wrong with it.
type row struct {
	line    int
	id      string // empty: to be derived from the payload
	payload []byte
	err     error
}

// source yields the rows of a file. Next returns false at the end; err then
// says what ended it early.
type source interface {
	next() (row, bool)
	err() error
}

// loading is one import under way.
type loading struct {
	flags    *Import
	producer *tallyman.Producer
	stderr   io.Writer
	limit    int // of a payload, in bytes

	mu      sync.Mutex
	summary summary
	fatal   error // why going on is useless
}

// run submits every row and returns when all outcomes are in. Its error says
// why it ended before the file did.
func (l *loading) run(ctx context.Context, in io.Reader) error {
	src, err := open(cli.Until(ctx, in), l.flags.Format, l.flags.IDField, l.limit)
	if err != nil {
		return err
	}
	var pending sync.WaitGroup
	through, end := outlasting(ctx)
	defer end()
	for l.stopped() == nil {
		r, ok := src.next()
		if !ok || ctx.Err() != nil {
			break
		}
		l.submit(through, r, &pending)
	}
	pending.Wait()
	switch stopped := l.stopped(); {
	case stopped != nil:
		return stopped
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; import again to go on, what was accepted is absorbed: %w", context.Cause(ctx))
	}
	return src.err()
}

// seeThrough is how long what is under way at a signal may take to be
// confirmed: a server that is there needs milliseconds.
const seeThrough = 2 * time.Second

// outlasting returns a context that ends seeThrough later than ctx, with the same cause.
func outlasting(ctx context.Context) (longer context.Context, end func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(seeThrough, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func() { stop(); cancel(nil) }
}

func (l *loading) submit(ctx context.Context, r row, pending *sync.WaitGroup) {
	if r.err != nil {
		l.report(r.line, tallyman.Submission{}, r.err)
		return
	}
	if r.id == "" {
		r.id = contentID(r.payload)
	}
	c := tallyman.Command{ID: r.id, Kind: l.flags.Kind, Queue: l.flags.Queue, Payload: r.payload}
	if l.flags.Format != "lines" {
		c.ContentType = "application/json"
	}
	pending.Add(1)
	err := l.producer.SubmitAsync(ctx, c, func(s tallyman.Submission, err error) {
		defer pending.Done()
		l.report(r.line, s, err)
	})
	if err != nil {
		pending.Done()
		l.report(r.line, tallyman.Submission{}, err)
	}
}

// contentID is the id of a command that is named by what it says.
func contentID(payload []byte) string {
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:16])
}

// report counts an outcome, and tells of it if it is bad.
func (l *loading) report(line int, s tallyman.Submission, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.summary.Read++
	switch {
	case err == nil && s.Absorbed:
		l.summary.Absorbed++
		return
	case err == nil:
		l.summary.Accepted++
		return
	case errors.Is(err, tallyman.ErrConflict):
		l.summary.Conflicts++
	default:
		l.summary.Failed++
	}
	for _, useless := range []error{tallyman.ErrDenied, tallyman.ErrNoPool, tallyman.ErrPoolFull, tallyman.ErrUnconfirmed} {
		if errors.Is(err, useless) && l.fatal == nil {
			l.fatal = fmt.Errorf("stopped at line %d; import again to go on, what was accepted is absorbed: %w", line, err)
		}
	}
	fmt.Fprintf(l.stderr, "%s:%d: %s\n", l.flags.File, line, strings.TrimPrefix(err.Error(), "tallyman: "))
}

func (l *loading) stopped() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
