package desk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Errors of this package. Test with errors.Is.
var (
	// ErrAct means that an act does not say properly who does it, or why.
	ErrAct = errors.New("invalid act")
	// ErrNotFound means that the id is unknown to the pool: it was never
	// submitted, or its receipt has expired.
	ErrNotFound = errors.New("not found")
	// ErrRefused means that the act does not fit the state that the command is
	// in. The error names both states and what may be done instead.
	ErrRefused = errors.New("refused")
)

const (
	// patience bounds an act whose context has no deadline.
	patience = 30 * time.Second
	// rejudge is how often an act looks anew because somebody else was faster.
	rejudge = 10

	maxBy  = 128
	maxWhy = 512
)

// Act says who does something, and why. Both go into the record's trail.
type Act struct {
	By  string // required; 1 to 128 bytes without control characters
	Why string // up to 512 bytes
}

func (a Act) check() error {
	switch {
	case strings.TrimSpace(a.By) == "":
		return fmt.Errorf("desk: %w: it does not say who acts", ErrAct)
	case len(a.By) > maxBy:
		return fmt.Errorf("desk: %w: the name of who acts has %d bytes, the limit is %d", ErrAct, len(a.By), maxBy)
	case !utf8.ValidString(a.By) || strings.ContainsFunc(a.By, unicode.IsControl):
		return fmt.Errorf("desk: %w: the name %q is not text without control characters", ErrAct, a.By)
	case len(a.Why) > maxWhy:
		return fmt.Errorf("desk: %w: the reason has %d bytes, the limit is %d", ErrAct, len(a.Why), maxWhy)
	case !utf8.ValidString(a.Why):
		return fmt.Errorf("desk: %w: the reason %q is not UTF-8", ErrAct, a.Why)
	}
	return nil
}

// Outcome is what came of an act.
type Outcome struct {
	// Already says that nothing had to be done: an earlier act had this effect.
	Already bool
	// Sequence is where a requeued command lies in the stream.
	Sequence uint64
	// Left says why a cancelled command could not be taken out of the stream.
	// The worker that gets it takes it out.
	Left error
}

// commands is what the desk wants of the command stream.
type commands interface {
	Republish(command.Envelope, func(stream.Accepted, error)) error
	Occupant(context.Context, command.Envelope) (stream.Stored, error)
	Find(context.Context, command.Token) (stream.Stored, error)
	Remove(context.Context, uint64) error
	Pause(ctx context.Context, queue string, until time.Time) error
	Resume(ctx context.Context, queue string) error
}

// records is what the desk wants of the bucket.
type records interface {
	Read(context.Context, command.Token) (kvstate.Entry, error)
	ReadMany([]command.Token, func([]kvstate.Entry, error)) error
	Scan(context.Context, func(kvstate.Entry) error) error
	LastRevision(context.Context) (uint64, error)
	Write(command.Token, *kvstate.Record, func(uint64, error)) error
	WriteWait(context.Context, command.Token, *kvstate.Record) (uint64, error)
	Put(key command.Token, value []byte, expire bool, done func(uint64, error)) error
	Remove(context.Context, command.Token, uint64) error
	Limit() int
}

// Desk acts on one pool. It is safe for concurrent use.
type Desk struct {
	commands commands
	records  records

	shards []*Desk // of a pool with more than one, whose first the fields above are
}

// New returns the desk of the pool with this stream and bucket, a
// [stream.Stream] and a [kvstate.Store] or what stands in for them. The store
// must know the pool's retention, as that of an opened pool does.
func New(commands commands, records records) *Desk {
	return &Desk{commands: commands, records: records}
}

// bounded gives ctx a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return pipeline.Within(ctx, patience)
}

// read returns the entry of a command, and the desk of the shard where it lies.
// Id may also be the key of a record that was parked aside, as a list of parked
// commands shows it.
func (d *Desk) read(ctx context.Context, id string) (*Desk, kvstate.Entry, error) {
	token, err := dedupe.Token(id)
	shard, aside, named := ParseKey(id, len(d.shards))
	if err != nil && !named {
		return d, kvstate.Entry{}, err
	}
	beside := d.all()[shard]
	if err != nil {
		e, err := beside.records.Read(ctx, aside)
		return beside, e, err
	}
	home := d.home(token)
	e, err := home.records.Read(ctx, token)
	if err != nil || e.Raw != nil || !named {
		return home, e, err
	}
	// An id may look like such a key; only what is there decides.
	if other, err := beside.records.Read(ctx, aside); err != nil || other.Raw != nil {
		return beside, other, err
	}
	return home, e, nil
}

// known is read for acts on what must have a record.
func (d *Desk) known(ctx context.Context, id string) (*Desk, kvstate.Entry, error) {
	at, e, err := d.read(ctx, id)
	switch {
	case err != nil:
		return at, e, err
	case e.Err != nil:
		return at, e, damaged(e)
	case e.Record != nil || kvstate.Aside(e.Key):
	default:
		if _, err := at.commands.Find(ctx, e.Key); err == nil {
			e.Record = &kvstate.Record{ID: id, Revision: e.Revision} // in the stream, and in no state
			return at, e, nil
		} else if !errors.Is(err, stream.ErrNotFound) {
			return at, e, err
		}
		if at, e, err = d.read(ctx, id); err != nil { // it may have left the stream just now
			return at, e, err
		}
	}
	if e.Record == nil {
		return at, e, d.unfound(ctx, id, e.Key)
	}
	return at, e, nil
}

func errUnknown() error {
	return fmt.Errorf("%w: it was never submitted, or its receipt has expired", ErrNotFound)
}

func damaged(e kvstate.Entry) error {
	return fmt.Errorf("its record at revision %d is damaged, and nothing is done on the ground of it. If its command is in the stream, the worker that gets it goes on from the revision before, or parks it as %s; otherwise tallyman show says what is left to do: %w", e.Revision, kvstate.ReasonCorrupt, e.Err)
}

// advance is Record.Advance by a person. What the table refuses is told with
// what may be done instead.
func (a Act) advance(e kvstate.Entry, to kvstate.State) (*kvstate.Record, error) {
	r := e.Record
	next, err := r.Advance(to, a.By, a.Why, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w: %w%s: %s", ErrRefused, err, lately(r), advice(r, kvstate.Aside(e.Key)))
	}
	return next, nil
}

// refusal is the error for what the table allows to workers alone.
func refusal(e kvstate.Entry, to kvstate.State) error {
	r := e.Record
	from := string(r.State)
	if r.State == kvstate.None {
		from = "none"
	}
	return fmt.Errorf("%w: not by a person from %q to %q%s: %s", ErrRefused, from, to, lately(r), advice(r, kvstate.Aside(e.Key)))
}

// lately tells who brought a record into its state, and when.
func lately(r *kvstate.Record) string {
	n := len(r.Trail)
	if n == 0 {
		return ""
	}
	s := r.Trail[n-1]
	return fmt.Sprintf(" (by %s at %s)", s.Owner, s.At.UTC().Format(time.RFC3339))
}
