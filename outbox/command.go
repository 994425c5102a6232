package outbox

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// MaxKeyLen is the limit on an order key, on the name of a run and on a content
// type, in bytes.
const MaxKeyLen = 256

// Command is a command intent: what is to be submitted once the transaction
// that adds it has committed.
type Command struct {
	ID          string    // the idempotency key of the act, as in tallyman.Command
	Kind        string    // as in tallyman.Command
	Queue       string    // as in tallyman.Command; empty means "default"
	ContentType string    // as in tallyman.Command; up to 256 bytes of UTF-8 without NUL
	Payload     []byte    // as in tallyman.Command
	NotAfter    time.Time // as in tallyman.Command; kept to the microsecond

	// OrderKey, if set, keeps the rows with the same key in order: a row is
	// submitted once all earlier rows with its key are accepted by the pool.
	// Up to 256 bytes of UTF-8 without NUL.
	OrderKey string
	// NotBefore, if set, is when the command is submitted at the earliest.
	NotBefore time.Time

	// Set by CommitDecision: the run that asked for it, and the event.
	run      string
	eventSeq uint64
}

// identify validates c and establishes its digest, so that what the pool would
// refuse is refused before it is stored.
func (c Command) identify() (command.Envelope, error) {
	env, err := dedupe.Identify(command.Command{
		ID: c.ID, Kind: c.Kind, Queue: c.Queue, ContentType: c.ContentType, Payload: c.Payload, NotAfter: c.NotAfter,
	})
	if err != nil {
		return env, err
	}
	if err := storable("content type", c.ContentType); err != nil {
		return env, fmt.Errorf("command %q: %w", c.ID, err)
	}
	if err := storable("order key", c.OrderKey); err != nil {
		return env, fmt.Errorf("command %q: %w", c.ID, err)
	}
	return env, nil
}

// storable refuses text that one of the databases could not hold.
func storable(what, text string) error {
	switch {
	case len(text) > MaxKeyLen:
		return fmt.Errorf("%w: the %s has %d bytes, the limit is %d", ErrInvalidName, what, len(text), MaxKeyLen)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%w: the %s %q is not UTF-8 without NUL", ErrInvalidName, what, text)
	}
	return nil
}
