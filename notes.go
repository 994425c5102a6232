package tallyman

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nuid"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/lease"
	"github.com/tallyman-go/tallyman/stream"
)

const (
	// maxNotes is how many notes wait to be written: while the server is away,
	// or after a mass loss of leases. More than that are dropped, and counted.
	maxNotes = 1000
	// notePause spaces the notes of a worker: no more than 200 a second.
	notePause = 5 * time.Millisecond
	// noteTime bounds one try to write a note, and what is left at shutdown.
	noteTime = time.Second
	// noteRetry is the pause before another try.
	noteRetry = 250 * time.Millisecond
	// tellDropped is how often the log tells of dropped notes.
	tellDropped = time.Minute
)

// notebook writes down what happens around commands but changes no record of
// them. Nobody waits for it, and nothing depends on it.
type notebook struct {
	store   func(ctx context.Context, p pendingNote, unique string) error
	log     *slog.Logger
	queue   chan pendingNote
	dropped atomic.Int64
}

type pendingNote struct {
	about command.Token
	note  kvstate.Note
}

func newNotebook(of func(command.Token) *shard, log *slog.Logger) *notebook {
	return &notebook{
		store: func(ctx context.Context, p pendingNote, unique string) error {
			return of(p.about).records.Note(ctx, p.about, unique, &p.note)
		},
		log: log, queue: make(chan pendingNote, maxNotes),
	}
}

// add never blocks.
func (b *notebook) add(about command.Token, n kvstate.Note) {
	select {
	case b.queue <- pendingNote{about, n}:
	default:
		b.dropped.Add(1)
	}
}

// run writes notes until ctx ends, then what is left, for noteTime at most.
func (b *notebook) run(ctx context.Context) {
	tick := time.NewTicker(tellDropped)
	defer tick.Stop()
	defer b.tell()
	for {
		select {
		case p := <-b.queue:
			b.write(ctx, p)
			if pipeline.Sleep(ctx, notePause) != nil {
				continue // the last ones are not spaced
			}
		case <-tick.C:
			b.tell()
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
			defer cancel()
			for last.Err() == nil {
				select {
				case p := <-b.queue:
					b.write(last, p)
				default:
					return
				}
			}
			b.dropped.Add(int64(len(b.queue)))
			return
		}
	}
}

// write stores one note. While the server is away it tries again, since what
// cuts workers off is what notes are about; a note that was stored without an
// answer is stored over itself.
func (b *notebook) write(ctx context.Context, p pendingNote) {
	unique := nuid.Next()
	for {
		try, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
		err := b.store(try, p, unique)
		cancel()
		if err == nil {
			return
		}
		b.log.Debug("note not written", "key", kvstate.NoteKey(p.about, unique), "error", err)
		if isOneOf(err, kvstate.ErrDenied, kvstate.ErrTooLarge, kvstate.ErrNoBucket) || pipeline.Sleep(ctx, noteRetry) != nil {
			b.dropped.Add(1)
			return
		}
	}
}

func (b *notebook) tell() {
	if n := b.dropped.Swap(0); n > 0 {
		b.log.Warn("notes about commands were dropped; tallyman why will know less of them", "dropped", n)
	}
}

// note writes down an event that the record of the command does not tell of.
func (r *run) note(e Event) {
	n := kvstate.Note{Entry: e.Key}
	switch e.Type {
	case EventAbsorbed:
		n.What = kvstate.NoteAbsorbed
	case EventDropped:
		n.What = kvstate.NoteDropped
	case EventStuck:
		n.What = kvstate.NoteStuck
	case EventLeaseLost:
		n.What = kvstate.NoteLeaseLost
		if lapse := (*lease.Lapse)(nil); errors.As(e.Err, &lapse) {
			n.At, n.Missed, n.Silence, n.NoticedAt = lapse.Ended.UTC(), lapse.Missed, lapse.Silence, lapse.Noticed.UTC()
			e.Err = nil // that says it
		}
	case EventRefused:
		n.What, n.Of = kvstate.NoteRefused, r.refusedWhat()
		if isOneOf(e.Err, ErrLeaseLost) && !r.lease.Held() && !isOneOf(e.Err, kvstate.ErrStale) {
			lapse := r.lease.Lapse()
			n.Missed, n.Silence = lapse.Missed, lapse.Silence
			e.Err = nil // that says it
		}
	case EventHandedBack:
		if r.unwritten() && r.lease.Held() {
			return // the record says so
		}
		n.What = kvstate.NoteHandedBack
	case EventCancelled:
		n.What = kvstate.NoteCancelled
	case EventFellBack:
		n.What = kvstate.NoteFellBack
	case EventForwarded:
		n.What = kvstate.NoteForwarded
	case EventParked:
		if e.Key == "" {
			return
		}
		n.What = kvstate.NoteParked
	default:
		return
	}
	if r.env.Token == "" {
		return // malformed in a way that leaves it without an id
	}
	if r.w.pool.of(r.env.Token) != r.shard {
		n.Stream = stream.Name(r.shard.name)
	}
	if n.At.IsZero() {
		n.At = time.Now().UTC()
	}
	n.Worker, n.Attempt, n.Token = r.w.owner, r.attempt, r.token.Load()
	n.Seq, n.Delivery, n.SubmittedAt = r.d.Seq, r.d.Attempts, r.d.StoredAt.UTC()
	if e.Err != nil {
		n.Text = clip(e.Err.Error(), maxError)
	}
	r.w.notes.add(r.env.Token, n)
}

// refusedWhat names what a stale holder wanted to write.
func (r *run) refusedWhat() string {
	switch {
	case !r.begun.Load():
		return "claim"
	case !r.settled.Load():
		return "progress"
	case r.failed.Load():
		return "failure"
	}
	return "result"
}

// unwritten reports whether this run is the one to write the command's next
// record: nobody has, or this worker has claimed it.
func (r *run) unwritten() bool {
	return r.base == nil || r.base.Owner == r.w.owner && (r.base.State == kvstate.Claimed || r.base.State == kvstate.Prepared)
}
