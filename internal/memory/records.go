package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Records is the bucket as one handle reaches it. It stands in for a
// [kvstate.Store], whose methods say what these do.
type Records struct {
	h    *Handle
	keep time.Duration // of final records; 0 for ever
}

// Records returns the bucket as this handle reaches it.
func (h *Handle) Records() *Records { return &Records{h, h.s.cfg.Retention} }

// Keep sets how long final records are kept that are written through r. Call it before any write.
func (r *Records) Keep(retention time.Duration) { r.keep = retention }

// headerRoom is what a record leaves for headers in a server message.
const headerRoom = 1024

// Limit is the largest encoded record in bytes.
func (r *Records) Limit() int { return r.h.s.cfg.MaxPayload - headerRoom }

// Write stores rec over its revision.
func (r *Records) Write(key command.Token, rec *kvstate.Record, done func(revision uint64, err error)) error {
	body, err := kvstate.Encode(rec)
	if err != nil {
		return err
	}
	if len(body) > r.Limit() {
		return tooLarge(key, len(body))
	}
	if !kvstate.Own(key) {
		r.h.entitled("a record", rec.Seqs...)
	}
	over := rec.Revision
	w := storing{key: key, data: body, label: rec.State, over: &over}
	if rec.State.Final() {
		w.keep, w.rollup = r.retention(), over > 0
	}
	return r.store(w, done)
}

// retention is how long the server keeps a final record: whole seconds.
func (r *Records) retention() time.Duration {
	if r.keep <= 0 {
		return 0
	}
	return max(r.keep.Truncate(time.Second), time.Second)
}

func tooLarge(key command.Token, n int) error {
	return fmt.Errorf("kvstate: write %s: %w: %d bytes", key, kvstate.ErrTooLarge, n)
}

func (r *Records) store(w storing, done func(uint64, error)) error {
	return r.h.ask(OpWrite, func(Fate) func() {
		revision, err := r.h.s.write(r.h.name, w)
		return func() { done(revision, err) }
	}, func(err error) { done(0, fmt.Errorf("kvstate: write %s: %w", w.key, err)) })
}

// WriteWait is Write that waits.
func (r *Records) WriteWait(ctx context.Context, key command.Token, rec *kvstate.Record) (uint64, error) {
	return pipeline.AwaitWrite(ctx, func(done func(uint64, error)) error { return r.Write(key, rec, done) })
}

// Put stores an entry that is no record.
func (r *Records) Put(key command.Token, value []byte, expire bool, done func(revision uint64, err error)) error {
	limit := r.h.s.cfg.MaxPayload
	w := storing{key: key, data: slices.Clone(value)}
	if expire {
		if w.keep = r.retention(); w.keep > 0 {
			limit = r.Limit()
		}
	}
	if len(value) > limit {
		return tooLarge(key, len(value))
	}
	return r.store(w, done)
}

// Note stores a note about a command.
func (r *Records) Note(ctx context.Context, about command.Token, unique string, n *kvstate.Note) error {
	body, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("kvstate: note about %s: %w", about, err)
	}
	_, err = pipeline.Await(ctx, func(done func(uint64, error)) error {
		return r.Put(kvstate.NoteKey(about, unique), body, true, done)
	})
	return err
}

// probeKeep is how long the trace of a probe stays.
const probeKeep = time.Minute

// Probe writes a small entry.
func (r *Records) Probe(ctx context.Context, key command.Token) error {
	_, err := pipeline.AwaitWrite(ctx, func(done func(uint64, error)) error {
		return r.store(storing{key: key, data: []byte("ready"), keep: probeKeep, rollup: true}, done)
	})
	return err
}

// Read returns the entry of key as the leader has it.
func (r *Records) Read(ctx context.Context, key command.Token) (kvstate.Entry, error) {
	return r.read(ctx, key, r.h.s.Entry)
}

// Oldest returns the oldest revision of key as the leader has it.
func (r *Records) Oldest(ctx context.Context, key command.Token) (kvstate.Entry, error) {
	return r.read(ctx, key, r.h.s.oldest)
}

func (r *Records) read(ctx context.Context, key command.Token, at func(command.Token) kvstate.Entry) (kvstate.Entry, error) {
	e, err := pipeline.Await(ctx, func(done func(kvstate.Entry, error)) error {
		return r.h.ask(OpRead, func(Fate) func() {
			e := at(key)
			return func() { done(e, nil) }
		}, func(err error) { done(kvstate.Entry{}, err) })
	})
	if err != nil {
		return kvstate.Entry{}, fmt.Errorf("kvstate: read %s: %w", key, err)
	}
	return e, nil
}

// ReadMany reads the entries of keys, from a replica that may lag.
func (r *Records) ReadMany(keys []command.Token, done func([]kvstate.Entry, error)) error {
	if len(keys) == 0 || len(keys) > kvstate.MaxBatch {
		return fmt.Errorf("kvstate: read %d keys at once, the limit is 1 to %d", len(keys), kvstate.MaxBatch)
	}
	keys = slices.Clone(keys)
	return r.h.ask(OpMany, func(f Fate) func() {
		entries := make([]kvstate.Entry, len(keys))
		for i, key := range keys {
			entries[i] = r.h.s.entryBehind(key, f.Behind)
		}
		return func() { done(entries, nil) }
	}, func(err error) { done(nil, fmt.Errorf("kvstate: read batch: %w", err)) })
}

// LastRevision returns the newest revision of the bucket.
func (r *Records) LastRevision(ctx context.Context) (uint64, error) {
	return pipeline.Await(ctx, func(done func(uint64, error)) error {
		return r.h.ask(OpRead, func(Fate) func() {
			last := r.h.s.lastRevision()
			return func() { done(last, nil) }
		}, func(err error) { done(0, err) })
	})
}

// Scan calls visit with the newest entry of every key, in the order of revisions.
func (r *Records) Scan(ctx context.Context, visit func(kvstate.Entry) error) error {
	entries, err := pipeline.Await(ctx, func(done func([]kvstate.Entry, error)) error {
		return r.h.ask(OpRead, func(Fate) func() {
			entries := r.h.s.entries()
			return func() { done(entries, nil) }
		}, func(err error) { done(nil, err) })
	})
	if err != nil {
		return fmt.Errorf("kvstate: scan: %w", err)
	}
	for _, e := range entries {
		if err := visit(e); err != nil {
			return err
		}
	}
	return nil
}

// Remove takes away an entry that is no record.
func (r *Records) Remove(ctx context.Context, key command.Token, revision uint64) error {
	_, err := pipeline.Await(ctx, func(done func(uint64, error)) error {
		return r.store(storing{key: key, marker: true, over: &revision, keep: probeKeep, rollup: true}, done)
	})
	return err
}
