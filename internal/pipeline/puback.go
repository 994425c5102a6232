package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// PubAck is the server's confirmation that a message is stored.
type PubAck struct {
	Sequence  uint64
	Duplicate bool // the id was seen before; Sequence is that of the first copy
	// Count is how many messages of an atomic batch are stored, Sequence being
	// that of the last; 0 for a message that came by itself.
	Count uint64
}

// APIError is a refusal by JetStream. Only packages stream and kvstate look
// into it; they give its codes a meaning.
type APIError struct {
	Status      int    `json:"code"`
	Code        int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *APIError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.Code) }

// ErrGarbled means that the server's answer could not be understood.
var ErrGarbled = errors.New("garbled answer")

// readAck reads what an OnReply got for a publish as a PubAck.
func readAck(m *nats.Msg, err error) (PubAck, error) {
	if err != nil {
		return PubAck{}, err
	}
	return ParsePubAck(m.Data)
}

// ParsePubAck reads a publish answer. An error is an *APIError or wraps
// ErrGarbled and ErrIndeterminate.
func ParsePubAck(data []byte) (PubAck, error) {
	// What the server sends for nearly every message: {"stream":"S","seq":7}
	if rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`)); ok {
		if i := bytes.IndexByte(rest, '"'); i >= 0 {
			if rest, ok = bytes.CutPrefix(rest[i:], []byte(`","seq":`)); ok {
				n, tail := digits(rest)
				if n > 0 && len(tail) == 1 && tail[0] == '}' {
					return PubAck{Sequence: n}, nil
				}
			}
		}
	}
	var ack struct {
		Error     *APIError `json:"error"`
		Sequence  uint64    `json:"seq"`
		Duplicate bool      `json:"duplicate"`
		Count     uint64    `json:"count"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
		return PubAck{}, fmt.Errorf("%w, %w: %w", ErrGarbled, ErrIndeterminate, err)
	case ack.Error != nil:
		return PubAck{}, ack.Error
	case ack.Sequence == 0:
		return PubAck{}, fmt.Errorf("%w, %w: no sequence in %.80q", ErrGarbled, ErrIndeterminate, data)
	}
	return PubAck{Sequence: ack.Sequence, Duplicate: ack.Duplicate, Count: ack.Count}, nil
}

func digits(b []byte) (n uint64, rest []byte) {
	i := 0
	for ; i < len(b) && i < 19 && b[i] >= '0' && b[i] <= '9'; i++ {
		n = n*10 + uint64(b[i]-'0')
	}
	return n, b[i:]
}
