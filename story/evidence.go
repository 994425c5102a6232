package story

import (
	"errors"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// ErrNotFound means that nothing at all is known of an id.
var ErrNotFound = errors.New("not found")

// Terms are the settings of the pool that a verdict refers to. Zero values are
// left out of it.
type Terms struct {
	Lease       time.Duration
	MaxAttempts int
	Retention   time.Duration
}

// Evidence is what is known about one command. Every field may be empty.
type Evidence struct {
	ID    string
	Asked time.Time // when it was gathered; verdicts count from it
	Terms Terms

	Entry   kvstate.Entry   // what the bucket holds under the id
	Earlier []kvstate.Entry // its revisions before that one, oldest first
	Copies  []Copy          // in the stream
	Intake  *Copy           // in the stream of another shard, waiting to be carried into this one
	Notes   []kvstate.Note
	// NotesLeft is how many notes were left out.
	NotesLeft int
	// Filed are entries beside the record: copies that were absorbed or parked,
	// damaged bytes, follow-ups that could not be born.
	Filed []kvstate.Entry
	// Scanned says that Filed is complete.
	Scanned bool
	// Parent is the command whose follow-up this one is, if its id shows it and
	// the record of the parent confirms it.
	Parent *kvstate.Record
	// Shard is which of how many it lies in; both zero in a pool that is not sharded.
	Shard, Shards int
	// Namesake is the record of the command that the id of a record which was
	// parked aside stands for.
	Namesake *kvstate.Record
	// Extra events come from sources that this package does not know.
	Extra []Event
}

// Copy is a stored command of the id.
type Copy struct {
	Seq       uint64
	At        time.Time
	Queue     string
	Kind      string
	Delivered Delivered
	Paused    bool // its queue
	Unserved  bool // its queue has no consumer, so no worker gets it
	// Acked says that the server has it as acked, or has given it up: nobody gets it any more.
	Acked bool
	// Settled says that it is acked and accounted for: it awaits the sweep, or
	// lingers, which the audit tells.
	Settled bool
}

// Delivered says whether a stored command has been given to a worker.
type Delivered int

// What is known of a delivery. The server tells how often only to the worker
// that gets it.
const (
	DeliveredUnknown Delivered = iota
	DeliveredNever
	DeliveredOnce // at least
)

// Event is one thing that happened.
type Event struct {
	At      time.Time `json:"at,omitzero"` // zero if not known
	Source  string    `json:"source"`      // where it is known from: stream, record, note, filed, or another
	Actor   string    `json:"actor,omitempty"`
	Token   uint64    `json:"token,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	What    string    `json:"what"` // one word, for programs
	Text    string    `json:"text"` // one sentence, for people
}

// Sources of events. Others may be added through Evidence.Extra.
const (
	SourceStream = "stream"
	SourceRecord = "record"
	SourceNote   = "note"
	SourceFiled  = "filed"
)

// Story is what happened to one command, in order, and where it stands.
type Story struct {
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Events  []Event  `json:"events"`
	Unknown []string `json:"unknown,omitempty"` // what cannot be known, and why
	Verdict string   `json:"verdict"`           // where it stands, and what may be done next
}

// States of a story beside those of a record.
const (
	StatePending = "pending" // in the stream, and no worker has written about it
	StateDamaged = "damaged" // its record does not decode
	StateGone    = "gone"    // neither in the stream nor on record
)

// record returns the newest record that decodes.
func (e *Evidence) record() *kvstate.Record { return e.Entry.Record }

// pendingCopies returns the copies that a worker is still to settle.
func (e *Evidence) pendingCopies() (pending []Copy) {
	for _, c := range e.Copies {
		if !c.Settled {
			pending = append(pending, c)
		}
	}
	return pending
}

// filed reports whether the entry with this key was found.
func (e *Evidence) filed(key command.Token) bool {
	return slices.ContainsFunc(e.Filed, func(f kvstate.Entry) bool { return f.Key == key })
}
