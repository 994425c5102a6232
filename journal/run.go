package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// DefaultEvery is how many decisions lie between two snapshots of a run.
const DefaultEvery = 100

// Model says how the state S of a run follows from its events.
type Model[S any] struct {
	// Fold changes the state by one event. It must depend on nothing but its
	// arguments, and change nothing else: it runs again on every replay.
	Fold func(*S, Recorded) error
	// Version names this fold. Change it whenever Fold would give another state
	// for the same events: snapshots of another version are not used.
	Version string
	// Every is how many decisions lie between two snapshots. Default 100; below
	// 0 there are none.
	Every int
	// Encode and Decode turn the state into bytes and back. Default MessagePack,
	// which keeps exported fields alone. The decoded state must be as good as
	// the encoded one: each commit goes through both.
	Encode func(*S) ([]byte, error)
	Decode func([]byte, *S) error
}

func (m Model[S]) withDefaults() Model[S] {
	if m.Every == 0 {
		m.Every = DefaultEvery
	}
	if m.Encode == nil {
		m.Encode = func(s *S) ([]byte, error) { return command.Marshal(s) }
	}
	if m.Decode == nil {
		m.Decode = func(b []byte, s *S) error { return command.Unmarshal(b, s) }
	}
	return m
}

// Run is a run with its state, as of one of its decisions. It belongs to one
// goroutine at a time; several of the same run, in any process, are kept apart
// by the journal.
type Run[S any] struct {
	j     *Journal
	id    string
	token command.Token
	model Model[S]
	state S
	at    head
	last  string // commit id of the decision at
	shelf *shelf
}

// Load returns a run as of its last decision: from a snapshot and what came
// after it, or from the first event on. A run that nobody has decided on is
// empty and no error. Errors are those of Replay.
func Load[S any](ctx context.Context, j *Journal, run string, model Model[S]) (*Run[S], error) {
	token, err := tokenOf(run)
	if err != nil {
		return nil, fmt.Errorf("journal: load: %w", err)
	}
	if model.Fold == nil {
		return nil, fmt.Errorf("journal: load run %q: %w: the model has no Fold", run, ErrInvalid)
	}
	r := &Run[S]{j: j, id: run, token: token, model: model.withDefaults(), shelf: newShelf(run, token)}
	end, err := j.end(ctx, token)
	if err != nil {
		return nil, err
	}
	if r.model.Every > 0 && end.seq > 0 {
		snaps, err := j.snapshots(ctx, r.shelf, r.model.Version)
		if err != nil {
			j.missedSnapshots.Add(1)
			j.log.Warn("the snapshots of a run cannot be read; the whole run is replayed", "run", run, "error", err)
		}
		for _, s := range snaps {
			err := r.begin(ctx, s.snapshot, end)
			if err == nil {
				r.shelf.newest = s.Seq
				break
			}
			if !errors.Is(err, ErrDamaged) {
				return nil, err
			}
			j.discard(run, r.shelf.keys[s.slot], err)
			r.shelf.seq[s.slot] = 0 // the next one replaces it
		}
	}
	if err := r.advance(ctx, end); err != nil {
		return nil, err
	}
	return r, nil
}

// begin takes over the state of a snapshot, if the decision it was taken after
// is still what it was. ErrDamaged means that it cannot be used.
func (r *Run[S]) begin(ctx context.Context, s *snapshot, end head) error {
	unusable := func(format string, args ...any) error {
		return fmt.Errorf("journal: the snapshot of run %q after decision %d is %w: %w", r.id, s.Seq, ErrDamaged, fmt.Errorf(format, args...))
	}
	if s.Seq > end.seq || s.At > end.at {
		return unusable("the run ends at decision %d", end.seq)
	}
	there, err := r.j.get(ctx, map[string]any{"seq": s.At})
	switch {
	case errors.Is(err, errNoEntry):
		return unusable("the journal holds nothing there")
	case err != nil:
		return fmt.Errorf("journal: load run %q: %w", r.id, err)
	}
	if at, err := there.entry(); err != nil || at.Run != r.id || at.Seq != s.Seq || at.ID != s.Commit {
		return unusable("the journal holds another decision there")
	}
	var state S
	if err := r.model.Decode(s.State, &state); err != nil {
		return unusable("its state does not decode: %w", err)
	}
	r.state, r.at, r.last = state, head{seq: s.Seq, at: s.At}, s.Commit
	return nil
}

// advance folds what came after r.at, up to end.
func (r *Run[S]) advance(ctx context.Context, end head) error {
	err := r.j.replay(ctx, r.token, r.at, end, func(e *Entry) error {
		if err := e.recorded(func(ev Recorded) error { return r.model.Fold(&r.state, ev) }); err != nil {
			return err
		}
		r.at, r.last = head{seq: e.Seq, at: e.StreamSeq}, e.ID
		return nil
	})
	if err != nil {
		return err
	}
	r.j.remember(r.token, r.at)
	r.keep(ctx)
	return nil
}

// keep stores a snapshot if one is due.
func (r *Run[S]) keep(ctx context.Context) {
	if r.model.Every < 0 || r.at.seq < r.shelf.newest+uint64(r.model.Every) {
		return
	}
	state, err := r.model.Encode(&r.state)
	if err != nil {
		r.j.missedSnapshots.Add(1)
		r.j.log.Warn("a snapshot was not stored: the state does not encode", "run", r.id, "error", err)
		return
	}
	r.j.store(ctx, r.shelf, &snapshot{
		Version: r.model.Version, Run: r.id, Seq: r.at.seq, At: r.at.at, Commit: r.last, TakenAt: time.Now().UTC(), State: state,
	})
}

// ID returns the run's id.
func (r *Run[S]) ID() string { return r.id }

// Seq returns how many decisions the state takes in.
func (r *Run[S]) Seq() uint64 { return r.at.seq }

// State returns the state. What it points to is the run's own: do not change it.
func (r *Run[S]) State() S { return r.state }

// Refresh takes in what others have decided meanwhile. After an error of Fold,
// load the run anew.
func (r *Run[S]) Refresh(ctx context.Context) error {
	end, err := r.j.end(ctx, r.token)
	if err != nil {
		return err
	}
	if end.at < r.at.at || end.seq < r.at.seq {
		return fmt.Errorf("journal: refresh run %q: %w: it ends at decision %d, and %d were folded; was it purged? Load it anew", r.id, ErrGap, end.seq, r.at.seq)
	}
	return r.advance(ctx, end)
}

// Commit writes d as the next decision and takes its events in. An event that
// the fold refuses is an error before anything is written. Errors are those of
// Journal.Commit, and leave the state as it was.
func (r *Run[S]) Commit(ctx context.Context, d Decision) (Committed, error) {
	e, err := r.j.entryOf(r.id, r.at.seq+1, d)
	if err != nil {
		return Committed{Run: r.id, ID: e.ID}, fmt.Errorf("journal: commit: %w", err)
	}
	next, err := r.try(e)
	if err != nil {
		return e.committed(false), err
	}
	done, err := r.j.commit(ctx, r.token, e, d.ID != "")
	if err != nil {
		return done, err
	}
	if done.Absorbed {
		return done, r.Refresh(ctx) // others may have gone on from there
	}
	r.state, r.at, r.last = *next, head{seq: done.Seq, at: done.StreamSeq}, done.ID
	r.keep(ctx)
	return done, nil
}

// try folds the events of e into a copy of the state.
func (r *Run[S]) try(e *Entry) (*S, error) {
	next := new(S)
	raw, err := r.model.Encode(&r.state)
	if err == nil {
		err = r.model.Decode(raw, next)
	}
	if err != nil {
		return nil, fmt.Errorf("journal: commit decision %d of run %q: %w: the copy of its state: %w", e.Seq, r.id, ErrInvalid, err)
	}
	if err := e.recorded(func(ev Recorded) error { return r.model.Fold(next, ev) }); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return next, nil
}

// Decide asks decide what follows from the state, and commits that. If somebody
// else was faster, it takes their decision in and asks again. A decision
// without events and commands means that there is nothing to do: then nothing
// is written, and Committed.Seq is the number of the last decision.
func (r *Run[S]) Decide(ctx context.Context, decide func(S) (Decision, error)) (Committed, error) {
	for {
		d, err := decide(r.state)
		if err != nil {
			return Committed{Run: r.id, ID: d.ID}, err
		}
		if len(d.Events) == 0 && len(d.Commands) == 0 {
			return Committed{Run: r.id, Seq: r.at.seq, StreamSeq: r.at.at}, nil
		}
		done, err := r.Commit(ctx, d)
		if !errors.Is(err, ErrConflict) {
			return done, err
		}
		if err := r.Refresh(ctx); err != nil {
			return done, err
		}
		// Not all who lost should come back at the same moment.
		if err := pipeline.Sleep(ctx, rand.N(2*time.Millisecond)); err != nil {
			return done, fmt.Errorf("journal: decide on run %q: %w", r.id, err)
		}
	}
}
