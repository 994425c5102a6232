package command

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on names, in bytes.
const (
	MaxIDLen   = 256
	MaxNameLen = 64
)

// DefaultQueue is the queue of a command that names none.
const DefaultQueue = "default"

// Errors of this package. Test with errors.Is.
var (
	// ErrInvalidID means that a command ID breaks the rules above.
	ErrInvalidID = errors.New("invalid command id")
	// ErrInvalidName means that a kind, queue or pool name is not one subject token.
	ErrInvalidName = errors.New("invalid name")
	// ErrMalformed means that bytes did not decode, or were not safe to decode.
	ErrMalformed = errors.New("malformed")
)

// What may become of a submission. They stand here because whoever submits, or
// carries what others submit, has to tell them apart; the root package gives
// them to users under the same names.
var (
	// ErrConflict means that the id already stands for another kind or payload.
	ErrConflict = errors.New("conflict")
	// ErrTooLarge means that a command, result or checkpoint exceeds what the server stores.
	ErrTooLarge = errors.New("too large")
	// ErrUnconfirmed means that the server has not confirmed a submission. It
	// may or may not be stored; submitting the same command again is safe.
	ErrUnconfirmed = errors.New("not confirmed")
	// ErrPoolFull means that the command stream has reached a limit and stayed there.
	ErrPoolFull = errors.New("pool is full")
	// ErrNoPool means that the pool's stream, bucket or settings do not exist.
	ErrNoPool = errors.New("no such pool")
	// ErrUnavailable means that the servers have no JetStream to offer just
	// now: it is off, starting, or without a leader. Nothing was done.
	ErrUnavailable = errors.New("JetStream is not available")
)

// Command is what was asked. The ID is the idempotency key of the logical
// act: the same ID always means the same act, whoever sends it and however
// often.
type Command struct {
	// ID names the act: 1 to 256 bytes of UTF-8 without control characters.
	ID string
	// Kind selects the handler: one token of A-Z a-z 0-9 - _, up to 64 bytes.
	Kind string
	// Queue is the lane; empty means DefaultQueue. Same alphabet as Kind.
	Queue string
	// ContentType describes Payload; it takes no part in the digest.
	ContentType string
	// Payload is what the handler gets, byte for byte. May be empty.
	Payload []byte
	// NotAfter, if set, is the last moment at which a handler may start.
	// A command that comes later is parked as expired.
	NotAfter time.Time
}

// Token is a command ID spelled in the alphabet of one NATS subject token.
type Token string

// Digest is the fingerprint of kind and payload, in hexadecimal.
type Digest string

// Envelope is a command whose identity has been established: valid names, the
// token of its ID and the digest of its content. Publishing requires one.
type Envelope struct {
	Command
	Token  Token
	Digest Digest
}

// Proof says that a command's fate is durable: the terminal entry with this
// revision is stored. Acking requires one, so that no ack can precede it.
type Proof struct {
	Revision uint64
}

// ValidateID returns an error that wraps ErrInvalidID unless id is usable.
func ValidateID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty; give every command an id of 1 to %d bytes", ErrInvalidID, MaxIDLen)
	case len(id) > MaxIDLen:
		return fmt.Errorf("%w %.40q...: %d bytes, the limit is %d; shorten or hash it", ErrInvalidID, id, len(id), MaxIDLen)
	case !utf8.ValidString(id):
		return fmt.Errorf("%w %q: not valid UTF-8", ErrInvalidID, id)
	}
	for i, r := range id {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w %q: control character %U at byte %d", ErrInvalidID, id, r, i)
		}
	}
	return nil
}

// ValidateName returns an error that wraps ErrInvalidName unless name is one
// subject token. What says what it names ("kind", "queue", "pool").
func ValidateName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%w: the %s is empty; use 1 to %d of A-Z a-z 0-9 - _", ErrInvalidName, what, MaxNameLen)
	}
	if len(name) > MaxNameLen {
		return fmt.Errorf("%w: %s %.80q has %d bytes, the limit is %d", ErrInvalidName, what, name, len(name), MaxNameLen)
	}
	for i := 0; i < len(name); i++ {
		if !nameByte(name[i]) {
			return fmt.Errorf("%w: %s %q may hold only A-Z a-z 0-9 - _, not %q", ErrInvalidName, what, name, name[i])
		}
	}
	return nil
}

func nameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}

// Validate checks the names and the deadline of c, filling in the default queue first.
func (c *Command) Validate() error {
	if c.Queue == "" {
		c.Queue = DefaultQueue
	}
	if err := ValidateID(c.ID); err != nil {
		return err
	}
	if err := ValidateName("kind", c.Kind); err != nil {
		return fmt.Errorf("command %q: %w", c.ID, err)
	}
	if err := ValidateName("queue", c.Queue); err != nil {
		return fmt.Errorf("command %q: %w", c.ID, err)
	}
	if strings.ContainsAny(c.ContentType, "\r\n") {
		return fmt.Errorf("command %q: %w: the content type %q contains a line break", c.ID, ErrInvalidName, c.ContentType)
	}
	if y := c.NotAfter.UTC().Year(); y < 0 || y > 9999 {
		return fmt.Errorf("command %q: %w: NotAfter lies in the year %d, which RFC 3339 cannot spell; leave it zero for none", c.ID, ErrInvalidName, y)
	}
	return nil
}
