package journal

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nuid"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

const (
	// MaxRunLen is the longest run id in bytes. It leaves room for the ids of
	// the run's commands, "<run>/<seq>/<n>".
	MaxRunLen = 216
	// MaxParts is how many events and how many commands one decision may hold.
	MaxParts = 1000
)

// Event is something that happened in a run.
type Event struct {
	// Kind says what: one token of A-Z a-z 0-9 - _, up to 64 bytes.
	Kind string
	// Data is what a fold gets, byte for byte. May be empty.
	Data []byte
}

// NewEvent makes an event whose data is v in MessagePack.
func NewEvent(kind string, v any) (Event, error) {
	data, err := command.Marshal(v)
	if err != nil {
		return Event{}, fmt.Errorf("journal: event %s: %w", kind, err)
	}
	return Event{Kind: kind, Data: data}, nil
}

// Decode reads the data of an event that NewEvent made.
func (e Event) Decode(v any) error {
	if err := command.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("journal: event %s: %w", e.Kind, err)
	}
	return nil
}

// Decision is what one Commit writes: what happened, and what is to be done
// about it. Both are stored together or not at all.
type Decision struct {
	// ID is the commit id. It tells a repeated Commit from another one, so it
	// must be new for each decision of a run. The id of the command whose
	// outcome is decided on is a good one: a repeated attempt is then absorbed.
	// Empty: Commit makes one and returns it.
	ID string
	// Events, in order. At most MaxParts.
	Events []Event
	// Commands to submit once the decision is stored, at most MaxParts. An
	// empty id stands for "<run>/<seq>/<n>", with the number of the decision
	// in the run and that of the command in the decision, both from 1.
	Commands []command.Command
}

// Committed is the answer to a Commit.
type Committed struct {
	Run string
	ID  string // the commit id, also where the outcome is unknown
	// Seq is the number of the decision in its run, from 1. The next decision expects it.
	Seq uint64
	// StreamSeq is where the decision lies in the journal's stream.
	StreamSeq uint64
	// Absorbed says that the decision had been stored by an earlier Commit.
	Absorbed bool
	// Commands are the ids of the decision's commands, in order.
	Commands []string
}

// Entry is a decision as it lies in the journal.
type Entry struct {
	Run       string
	ID        string // the commit id
	Seq       uint64 // in its run, from 1 without gaps
	StreamSeq uint64
	At        time.Time // when it was decided, by the decider's clock
	Events    []Event
	Commands  []command.Command
}

// Recorded is an event as a fold gets it.
type Recorded struct {
	Event
	Run    string
	Seq    uint64    // of its decision in the run
	N      int       // of the event in its decision, from 1
	At     time.Time // when it was decided, by the decider's clock
	Commit string    // the commit id of its decision
}

// recorded returns the events of an entry as a fold gets them.
func (e *Entry) recorded(fold func(Recorded) error) error {
	for i, ev := range e.Events {
		err := fold(Recorded{Event: ev, Run: e.Run, Seq: e.Seq, N: i + 1, At: e.At, Commit: e.ID})
		if err != nil {
			return fmt.Errorf("journal: fold event %d (%s) of decision %d of run %q: %w", i+1, ev.Kind, e.Seq, e.Run, err)
		}
	}
	return nil
}

// tokenOf returns the token of a run id, the same spelling as that of command ids.
func tokenOf(run string) (command.Token, error) {
	token, err := dedupe.Token(run)
	if err != nil {
		return "", fmt.Errorf("%w: run: %w", ErrInvalid, err)
	}
	if len(run) > MaxRunLen {
		return "", fmt.Errorf("%w: run %.40q... has %d bytes, the limit is %d", ErrInvalid, run, len(run), MaxRunLen)
	}
	return token, nil
}

// entryOf makes the entry that d becomes as decision seq of run. It checks all
// that can be checked without asking anybody, the commands as Submit would.
func (j *Journal) entryOf(run string, seq uint64, d Decision) (*Entry, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w %d of run %q: %w", ErrInvalid, seq, run, fmt.Errorf(format, args...))
	}
	e := &Entry{Run: run, ID: d.ID, Seq: seq, At: time.Now().UTC().Round(0), Events: slices.Clone(d.Events)}
	if e.ID == "" {
		e.ID = nuid.Next()
	}
	if err := command.ValidateID(e.ID); err != nil {
		return e, bad("commit id: %w", err)
	}
	switch {
	case len(d.Events) == 0 && len(d.Commands) == 0:
		return e, bad("it holds no event and no command")
	case len(d.Events) > MaxParts || len(d.Commands) > MaxParts:
		return e, bad("it holds %d events and %d commands, the limit is %d each; split it", len(d.Events), len(d.Commands), MaxParts)
	}
	for i, ev := range d.Events {
		if err := command.ValidateName("kind of the event", ev.Kind); err != nil {
			return e, bad("event %d: %w", i+1, err)
		}
		if len(ev.Data) == 0 {
			e.Events[i].Data = nil // as it will be read back
		}
	}
	seen := make(map[string]bool, len(d.Commands))
	for i, c := range d.Commands {
		if c.ID == "" {
			c.ID = fmt.Sprintf("%s/%d/%d", run, seq, i+1)
		}
		if seen[c.ID] {
			return e, bad("command %d: the id %q is there twice", i+1, c.ID)
		}
		seen[c.ID] = true
		env, err := dedupe.Identify(c)
		if err != nil {
			return e, bad("command %d: %w", i+1, err)
		}
		if err := j.commandsOf(env.Token).Check(env); err != nil {
			return e, fmt.Errorf("journal: command %d of decision %d of run %q: %w: %w", i+1, seq, run, ErrTooLarge, err)
		}
		e.Commands = append(e.Commands, env.Command)
	}
	return e, nil
}

// ids returns the ids of the entry's commands.
func (e *Entry) ids() []string {
	ids := make([]string, len(e.Commands))
	for i := range e.Commands {
		ids[i] = e.Commands[i].ID
	}
	return ids
}

func (e *Entry) committed(absorbed bool) Committed {
	return Committed{Run: e.Run, ID: e.ID, Seq: e.Seq, StreamSeq: e.StreamSeq, Absorbed: absorbed, Commands: e.ids()}
}

// header spells what people see with the nats CLI; it is not read back, except for the sum.
const (
	headerRun    = "Tallyman-Run"
	headerSeq    = "Tallyman-Seq"
	headerCommit = "Tallyman-Commit"
	headerSum    = "Tallyman-Sum"
)
