package kvstate

import (
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/vmihailenco/msgpack/v5"
)

// Version is the newest record version that this code writes.
const Version = 1

// MaxTrail is how many transitions a record remembers.
const MaxTrail = 16

// Record is the one entry of a command in the bucket: where it stands, how
// far it got and what came of it.
type Record struct {
	ID      string
	Kind    string
	Queue   string
	Digest  command.Digest
	State   State
	Token   uint64 // fencing token: the revision of the last takeover; 0 before the first
	Attempt int    // attempts started so far, this one included
	Owner   string // the worker that wrote this revision, or the person
	Seqs    []uint64

	Offset     uint64
	Checkpoint []byte
	Intent     []byte

	Result      []byte
	ContentType string
	ResolvedBy  string // the person who stated the result, if none of the workers did
	FollowUps   []command.Command

	Error  string // of the last failed attempt
	Reason Reason // when parked
	NextAt time.Time

	Command *command.Command // whole, when parked or sent back; its payload may lie under PayloadKey
	Trail   []Step

	// Extra holds the fields of newer versions as they came.
	Extra []Field

	// Revision is the bucket revision this record was read at; 0 for none.
	// It is not part of the stored bytes.
	Revision uint64
	// StoredAt is when the server stored this revision. Not part of the bytes.
	StoredAt time.Time
}

// Step is one transition in a record's trail.
type Step struct {
	At    time.Time
	State State
	Owner string
	Token uint64
	Note  string // an error, a reason or an operator's why; may be empty
}

// Field is one field of a record that this version does not know.
type Field struct {
	Name  string
	Value msgpack.RawMessage
}

// Since is when the record came into its state. That is before StoredAt where it
// was written again in that state, as by a move into another shard.
func (r *Record) Since() time.Time {
	if n := len(r.Trail); n > 0 && r.Trail[n-1].At.Before(r.StoredAt) {
		return r.Trail[n-1].At
	}
	return r.StoredAt
}

// Advance returns a copy of r in state to, with owner and note added to the
// trail. It refuses what the transition table does not hold. The command is
// carried along only to states that are a human's business.
func (r *Record) Advance(to State, owner, note string, at time.Time) (*Record, error) {
	return r.AdvanceIn(nil, to, owner, note, at)
}

// Room is memory for the only record that most commands ever have, in one piece.
type Room struct {
	record Record
	step   [1]Step
}

var rooms = sync.Pool{New: func() any { return new(Room) }}

// NewRoom returns a room, used before or not.
func NewRoom() *Room { return rooms.Get().(*Room) }

// Release gives the room back: the record made in it is not to be used any more.
func (m *Room) Release() {
	*m = Room{}
	rooms.Put(m)
}

// AdvanceIn is Advance, in room if that is not nil and r has no trail yet.
func (r *Record) AdvanceIn(room *Room, to State, owner, note string, at time.Time) (*Record, error) {
	if err := Check(r.State, to); err != nil {
		return nil, err
	}
	keep := r.Trail
	if len(keep) >= MaxTrail {
		keep = keep[len(keep)-MaxTrail+1:]
	}
	var next *Record
	if len(keep) == 0 {
		if room == nil {
			room = new(Room)
		}
		next = &room.record
		*next = *r
		next.Trail = room.step[:0]
	} else {
		whole := *r
		next = &whole
		next.Trail = append(make([]Step, 0, len(keep)+1), keep...)
	}
	next.State = to
	next.Owner = owner
	if to != Parked && to != Requeued && to != Discarded {
		next.Command = nil // it is in the stream, or needed no more; a result needs the room
	}
	next.Trail = append(next.Trail, Step{At: at, State: to, Owner: owner, Token: r.Token, Note: note})
	return next, nil
}

// Accounts reports whether r speaks for the stream sequence seq.
func (r *Record) Accounts(seq uint64) bool { return slices.Contains(r.Seqs, seq) }

// Open reports whether an effect was announced whose outcome is not known, so
// that the command must not simply run again.
func (r *Record) Open() bool {
	return r.State == Prepared || r.Intent != nil && !r.State.Terminal() && r.State != Requeued
}

// AddSeq makes r speak for seq.
func (r *Record) AddSeq(seq uint64) {
	if seq != 0 && !r.Accounts(seq) {
		r.Seqs = append(slices.Clone(r.Seqs), seq)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
