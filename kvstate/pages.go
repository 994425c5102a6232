package kvstate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

const (
	// pageEntries and pageBytes bound one page, and with that the memory of
	// whoever reads on from it.
	pageEntries = 256
	pageBytes   = 4 << 20
)

// AllRecords is the pattern of Page that matches every key of one token: all
// records and what is filed under a sequence, but no notes.
const AllRecords command.Token = "*"

// Page returns stored revisions of the keys that match pattern, from revision
// from on, in rising order, and whether there are more behind them. A pattern
// is a key, or has "*" in place of one of its tokens. Revisions that were
// replaced, beyond the History that the bucket keeps, are not there any more;
// the newest of a key always is. Delete markers come as entries without Raw.
//
// On a replicated bucket a follower that lags may answer: then the newest
// revisions are missing, and come with a later call.
func (s *Store) Page(ctx context.Context, pattern command.Token, from uint64) (entries []Entry, more bool, err error) {
	q := pipeline.Query{Stream: s.stream, From: from, Subject: s.prefix + string(pattern), Batch: pageEntries, Bytes: pageBytes}
	entries, more, err = pipeline.Page(ctx, s.pipe, q, func(m pipeline.Stored) Entry {
		return s.entryAt(m.Subject, m.Seq, m.At, m.Header, m.Data)
	})
	if err != nil {
		return nil, false, fmt.Errorf("kvstate: read %s from revision %d: %w", pattern, from, err)
	}
	return entries, more, nil
}

// Next is Page that asks the stream's leader, which never lags, for the first
// one alone. Its Revision is 0 if there is none.
func (s *Store) Next(ctx context.Context, pattern command.Token, from uint64) (Entry, error) {
	return s.read(ctx, pattern, map[string]any{"seq": max(from, 1), "next_by_subj": s.prefix + string(pattern)})
}

// LastRevision returns the newest revision of the bucket, of whatever key: what
// a scan that begins now meets with a higher one was written since.
func (s *Store) LastRevision(ctx context.Context) (uint64, error) {
	str, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, s.stream) })
	if err != nil {
		return 0, fmt.Errorf("kvstate: newest revision of %s: %w", s.stream, pipeline.Away(err))
	}
	return str.CachedInfo().State.LastSeq, nil
}

// Revisions returns every revision of key that the bucket still has, oldest
// first: at most History of them. See Page for replicas that lag.
func (s *Store) Revisions(ctx context.Context, key command.Token) ([]Entry, error) {
	var all []Entry
	for from, more := uint64(1), true; more; {
		var page []Entry
		var err error
		if page, more, err = s.Page(ctx, key, from); err != nil {
			return nil, err
		}
		all = append(all, page...)
		if n := len(page); n > 0 {
			from = page[n-1].Revision + 1
		}
	}
	return all, nil
}

// Newest returns the newest entries of those of up to MaxBatch keys that were
// written at revision from or later, in the order of their revisions. See Page
// for replicas that lag.
func (s *Store) Newest(ctx context.Context, keys []command.Token, from uint64) ([]Entry, error) {
	entries, err := s.readManyWait(ctx, keys, from)
	fresh := slices.DeleteFunc(entries, func(e Entry) bool { return e.Revision < max(from, 1) })
	slices.SortFunc(fresh, func(a, b Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	return slices.CompactFunc(fresh, func(a, b Entry) bool { return a.Revision == b.Revision }), err
}
