package desk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// write stores next over the revision that it was made from, and returns what
// is stored then. It is next if wrote is set; else somebody was faster.
func (d *Desk) write(ctx context.Context, key command.Token, next *kvstate.Record) (e kvstate.Entry, wrote bool, err error) {
	revision, err := d.records.WriteWait(ctx, key, next)
	if err != nil {
		return d.clarify(ctx, key, next, err)
	}
	return stored(key, next, revision), true, nil
}

// clarify finds out what became of a write that did not simply succeed, and
// writes again what is certain not to be there. The stored record decides.
func (d *Desk) clarify(ctx context.Context, key command.Token, next *kvstate.Record, err error) (kvstate.Entry, bool, error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if !errors.Is(err, kvstate.ErrStale) && !passing(err) {
			return kvstate.Entry{}, false, err
		}
		e, readErr := d.records.Read(ctx, key)
		switch {
		case readErr == nil && sameAct(e.Record, next):
			return e, true, nil
		case readErr == nil && e.Revision != next.Revision:
			return e, false, nil
		case readErr != nil && !passing(readErr):
			return kvstate.Entry{}, false, readErr
		}
		if pipeline.Sleep(ctx, pause) != nil {
			return kvstate.Entry{}, false, fmt.Errorf("%w; whether it was done is not known, so repeat it", err)
		}
		if readErr != nil {
			continue // a write now could not be told from the one before
		}
		var revision uint64
		if revision, err = d.records.WriteWait(ctx, key, next); err == nil {
			return stored(key, next, revision), true, nil
		}
	}
}

// stored is the entry of a record that was just written.
func stored(key command.Token, r *kvstate.Record, revision uint64) kvstate.Entry {
	written := *r
	written.Revision = revision
	return kvstate.Entry{Key: key, Revision: revision, Record: &written}
}

// passing reports whether an error may go away by itself.
func passing(err error) bool {
	return errors.Is(err, kvstate.ErrIndeterminate) || errors.Is(err, kvstate.ErrUnavailable)
}

// sameAct reports whether a stored record is the one that this act wanted to
// write: by the same person, at the same nanosecond.
func sameAct(stored, wanted *kvstate.Record) bool {
	if stored == nil || stored.Revision == wanted.Revision || stored.State != wanted.State || stored.Owner != wanted.Owner {
		return false
	}
	n, m := len(stored.Trail), len(wanted.Trail)
	return n > 0 && m > 0 && stored.Trail[n-1].At.Equal(wanted.Trail[m-1].At)
}
