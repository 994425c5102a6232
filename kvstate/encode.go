package kvstate

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/command"
)

// A record is a MessagePack map whose last field, "sum", is the CRC-32C of
// every byte before that field's value. A bit that flips anywhere is noticed.
const sumSize = 4

var sumPrefix = []byte("\xa3sum\xce")

// encoder appends MessagePack in its shortest forms. One record is written for
// every command, so this is done by hand: the library's encoder, built for any
// type and any writer, takes twice as long.
type encoder struct {
	b []byte
	n int // fields so far
}

// Encode returns the stored form of r.
func Encode(r *Record) ([]byte, error) { return appendRecord(nil, r) }

// appendRecord appends the stored form of r to b, which is empty.
func appendRecord(b []byte, r *Record) ([]byte, error) {
	// Room for the map header, written last, when the count is known.
	e := encoder{b: append(slices.Grow(b, sizeHint(r)), 0, 0, 0)}
	e.uintField("v", Version)
	e.strField("id", r.ID)
	e.strField("kind", r.Kind)
	e.strField("queue", r.Queue)
	e.strField("digest", string(r.Digest))
	e.strField("state", string(r.State))
	e.uintField("token", r.Token)
	e.uintField("attempt", uint64(max(r.Attempt, 0)))
	e.strField("owner", r.Owner)
	if len(r.Seqs) > 0 {
		e.key("seqs")
		e.array(len(r.Seqs))
		for _, s := range r.Seqs {
			e.uint(s)
		}
	}
	e.uintField("offset", r.Offset)
	if r.Checkpoint != nil {
		e.binField("checkpoint", r.Checkpoint)
		e.uintField("checksum", uint64(checksum(r.Checkpoint)))
	}
	e.binField("intent", r.Intent)
	e.binField("result", r.Result)
	e.strField("content_type", r.ContentType)
	e.strField("resolved_by", r.ResolvedBy)
	if len(r.FollowUps) > 0 {
		e.key("followups")
		e.array(len(r.FollowUps))
		for i := range r.FollowUps {
			e.command(&r.FollowUps[i])
		}
	}
	e.strField("error", r.Error)
	e.strField("reason", string(r.Reason))
	if !r.NextAt.IsZero() {
		e.key("next_at")
		e.time(r.NextAt)
	}
	if r.Command != nil {
		e.key("command")
		e.command(r.Command)
	}
	if len(r.Trail) > 0 {
		e.key("trail")
		e.array(len(r.Trail))
		for i := range r.Trail {
			e.step(&r.Trail[i])
		}
	}
	for _, f := range r.Extra {
		e.key(f.Name)
		e.b = append(e.b, f.Value...)
	}
	if e.n >= math.MaxUint16 {
		return nil, fmt.Errorf("kvstate: encode record of %q: %d fields, the limit is %d", r.ID, e.n, math.MaxUint16-1)
	}
	e.b[0] = 0xde
	binary.BigEndian.PutUint16(e.b[1:], uint16(e.n+1))
	e.b = append(e.b, sumPrefix...)
	return binary.BigEndian.AppendUint32(e.b, checksum(e.b)), nil
}

// sizeHint returns a size that most records fit into, so that encoding one
// allocates once. A wrong guess costs time, nothing else.
func sizeHint(r *Record) int {
	n := 128 + len(r.ID) + len(r.Kind) + len(r.Queue) + len(r.Digest) + len(r.Owner) + 9*len(r.Seqs) +
		len(r.Checkpoint) + len(r.Intent) + len(r.Result) + len(r.ContentType) + len(r.ResolvedBy) + len(r.Error)
	for i := range r.FollowUps {
		n += 256 + len(r.FollowUps[i].ID) + len(r.FollowUps[i].Payload)
	}
	if r.Command != nil {
		n += 256 + len(r.Command.ID) + len(r.Command.Payload)
	}
	for i := range r.Trail {
		n += 40 + len(r.Trail[i].Owner) + len(r.Trail[i].Note)
	}
	for i := range r.Extra {
		n += 5 + len(r.Extra[i].Name) + len(r.Extra[i].Value)
	}
	return n
}

func (e *encoder) step(s *Step) {
	e.array(5)
	e.time(s.At)
	e.str(string(s.State))
	e.str(s.Owner)
	e.uint(s.Token)
	e.str(s.Note)
}

func (e *encoder) command(c *command.Command) {
	n := byte(5)
	if !c.NotAfter.IsZero() {
		n++
	}
	e.b = append(e.b, 0x80|n)
	e.str("id")
	e.str(c.ID)
	e.str("kind")
	e.str(c.Kind)
	e.str("queue")
	e.str(c.Queue)
	e.str("content_type")
	e.str(c.ContentType)
	e.str("payload")
	e.bin(c.Payload)
	if !c.NotAfter.IsZero() {
		e.str("not_after")
		e.time(c.NotAfter)
	}
}

// A field that holds its zero value is left out.

func (e *encoder) key(k string) { e.n++; e.str(k) }

func (e *encoder) strField(k, v string) {
	if v != "" {
		e.key(k)
		e.str(v)
	}
}

func (e *encoder) binField(k string, v []byte) {
	if v != nil {
		e.key(k)
		e.bin(v)
	}
}

func (e *encoder) uintField(k string, v uint64) {
	if v != 0 {
		e.key(k)
		e.uint(v)
	}
}

func (e *encoder) str(v string) {
	if len(v) < 32 {
		e.b = append(e.b, 0xa0|byte(len(v)))
	} else {
		e.length(len(v), 0xd9)
	}
	e.b = append(e.b, v...)
}

// bin writes absent bytes as empty ones; where the difference counts, the
// field is left out.
func (e *encoder) bin(v []byte) {
	e.length(len(v), 0xc4)
	e.b = append(e.b, v...)
}

// length writes a length in 1, 2 or 4 bytes behind the code of that form; the
// three codes of str, and those of bin, are neighbours.
func (e *encoder) length(n int, code byte) {
	switch {
	case n <= math.MaxUint8:
		e.b = append(e.b, code, byte(n))
	case n <= math.MaxUint16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, code+1), uint16(n))
	default:
		e.b = binary.BigEndian.AppendUint32(append(e.b, code+2), uint32(n))
	}
}

func (e *encoder) array(n int) {
	switch {
	case n < 16:
		e.b = append(e.b, 0x90|byte(n))
	case n <= math.MaxUint16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, 0xdc), uint16(n))
	default:
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xdd), uint32(n))
	}
}

func (e *encoder) uint(v uint64) {
	switch {
	case v < 128:
		e.b = append(e.b, byte(v))
	case v <= math.MaxUint8:
		e.b = append(e.b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		e.b = binary.BigEndian.AppendUint16(append(e.b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xce), uint32(v))
	default:
		e.b = binary.BigEndian.AppendUint64(append(e.b, 0xcf), v)
	}
}

// time writes the timestamp extension, type -1, in its form of 4, 8 or 12 bytes.
func (e *encoder) time(t time.Time) {
	sec, nsec := uint64(t.Unix()), uint64(t.Nanosecond())
	switch {
	case sec>>34 != 0: // before 1970 or after 2514
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xc7, 12, 0xff), uint32(nsec))
		e.b = binary.BigEndian.AppendUint64(e.b, sec)
	case nsec == 0 && sec <= math.MaxUint32:
		e.b = binary.BigEndian.AppendUint32(append(e.b, 0xd6, 0xff), uint32(sec))
	default:
		e.b = binary.BigEndian.AppendUint64(append(e.b, 0xd7, 0xff), nsec<<34|sec)
	}
}
