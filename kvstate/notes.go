package kvstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// NoteKind says what a note is about.
type NoteKind string

// The kinds of notes.
const (
	NoteLeaseLost  NoteKind = "lease_lost"  // the lease ended while a handler was at work
	NoteRefused    NoteKind = "refused"     // a stale holder's write was refused, or not even tried
	NoteStuck      NoteKind = "stuck"       // a handler ignored the end of its context
	NoteAbsorbed   NoteKind = "absorbed"    // a repeated delivery or another copy changed nothing
	NoteDropped    NoteKind = "dropped"     // a delivery was left to its lease, to come again
	NoteHandedBack NoteKind = "handed_back" // given back at shutdown by a worker that had not begun
	NoteCancelled  NoteKind = "cancelled"   // a worker let go of it, since a person had cancelled it
	NoteFellBack   NoteKind = "fell_back"   // a damaged record; the attempt went on from the one before; see Entry
	NoteForwarded  NoteKind = "forwarded"   // it lay in another shard than its id's, and was submitted there; see Stream
	NoteParked     NoteKind = "parked"      // a copy was parked beside the record; see Entry
	NoteMoved      NoteKind = "moved"       // the record was carried into another shard
)

// Note is something that happened around a command but changed no record of
// it. Notes are for people who ask what happened: nothing is decided by them,
// and they may be missing, since a worker that dies or is cut off takes those
// along that it has not written yet.
type Note struct {
	At      time.Time `json:"at"` // by the worker's clock
	What    NoteKind  `json:"what"`
	Worker  string    `json:"worker"`
	Attempt int       `json:"attempt,omitempty"`
	Token   uint64    `json:"token,omitempty"` // that the worker held; 0 if it had claimed nothing

	// Of says what was refused: "claim", "progress", "result" or "failure".
	Of string `json:"of,omitempty"`
	// Where the lease had run out: how many heartbeats had gone unconfirmed, the
	// time from the last that was confirmed to the end of the lease, and when the
	// worker noticed.
	Missed    int           `json:"missed_heartbeats,omitempty"`
	Silence   time.Duration `json:"silence_ns,omitempty"`
	NoticedAt time.Time     `json:"noticed_at,omitzero"`

	// The delivery that the note is about. Stream is set if it did not lie in the
	// shard of its id: sequence and Entry are then of that stream and its bucket.
	Stream      string    `json:"stream,omitempty"`
	Seq         uint64    `json:"sequence,omitempty"`
	Delivery    uint64    `json:"delivery,omitempty"`    // its number, by the server's count
	SubmittedAt time.Time `json:"submitted_at,omitzero"` // when the server stored that sequence

	// Entry is the key of a further entry that belongs to it.
	Entry command.Token `json:"entry,omitempty"`
	Text  string        `json:"text,omitempty"` // an error

	// Revision it was read at. Not part of the stored bytes.
	Revision uint64 `json:"-"`
}

// MaxNotes is how many notes about one command Notes returns.
const MaxNotes = 1000

// Note stores n about the command with this token and waits for the answer.
// It is kept as long as a receipt. Unique tells it from others about the same
// command and must be of the alphabet of a token; writing it twice is one note.
func (s *Store) Note(ctx context.Context, token command.Token, unique string, n *Note) error {
	body, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("kvstate: note about %s: %w", token, err)
	}
	m := pipeline.NewMessage(s.Subject(NoteKey(token, unique)), body)
	m.Set(jetstream.ExpectedLastSubjSeqHeader, "0")
	if s.keep != "" {
		m.Set(jetstream.MsgTTLHeader, s.keep)
	}
	if _, err = s.sendWait(ctx, m); errors.Is(err, ErrStale) {
		return nil // an earlier try whose answer got lost
	}
	return err
}

// Notes returns the notes about the command with this token in the order in
// which they were stored, the newest MaxNotes of them, and how many older ones
// were left out. A note that does not decode is returned as one that says so.
func (s *Store) Notes(ctx context.Context, token command.Token) (notes []Note, left int, err error) {
	for from, more := uint64(1), true; more; {
		var page []Entry
		if page, more, err = s.Page(ctx, NoteKey(token, "*"), from); err != nil {
			return nil, 0, err
		}
		for _, e := range page {
			from = e.Revision + 1
			if e.Raw == nil {
				continue // deleted by hand
			}
			notes = append(notes, noteOf(e))
		}
		if n := len(notes) - MaxNotes; n > 0 {
			left += n
			notes = append(notes[:0], notes[n:]...)
		}
	}
	return notes, left, nil
}

func noteOf(e Entry) Note {
	var n Note
	if err := json.Unmarshal(e.Raw, &n); err != nil {
		n = Note{At: e.At, What: "damaged", Entry: e.Key, Text: err.Error()}
	}
	n.Revision = e.Revision
	return n
}
