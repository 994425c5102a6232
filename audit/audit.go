package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

const (
	// looks is how often something that looks amiss is looked for in all.
	looks = 3
	// lookAgain is the pause between two looks: replicas that lag catch up meanwhile.
	lookAgain = 250 * time.Millisecond
	// maxSuspects bounds the sequences that may turn out to be doubled.
	maxSuspects = 1 << 16
)

// Options of an audit. The zero value is useful.
type Options struct {
	// Close stores, after a balanced audit, up to where every sequence has its
	// outcome or is parked. Later audits begin there, so that receipts may
	// expire. A command that stays in the stream holds it up.
	Close bool
	// Against is what a producer was told was accepted, in any order: the report
	// then names those ids that are neither in the stream nor on record. Only
	// such a list shows that stream and bucket went back together, as when an
	// older copy of the store is put back. Read once; an error that it yields
	// ends the audit.
	Against iter.Seq2[Accepted, error]
}

// Run audits a pool. An error means that the audit could not be made; books
// that do not balance are no error but a report that says so.
func Run(ctx context.Context, commands *stream.Stream, records *kvstate.Store, opts Options) (Report, error) {
	state, err := commands.State(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("audit: %w", err)
	}
	seal, err := readSeal(ctx, records)
	if err != nil {
		return Report{}, err
	}
	// A stream that was made anew counts from 1; what was closed says nothing about it.
	closed := seal.ClosedThrough
	if closed > state.LastSeq {
		return Report{}, fmt.Errorf("audit: the books are closed through sequence %d, and the stream ends at %d: the stream was replaced; delete the key %s to begin anew",
			closed, state.LastSeq, kvstate.KeyAudit)
	}
	for look := 1; ; look++ {
		b := newBooks(commands, records, closed, state.LastSeq)
		if err := b.read(ctx); err != nil {
			return Report{}, err
		}
		if b.report.Balanced || look == looks {
			return b.finish(ctx, seal, opts)
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return Report{}, fmt.Errorf("audit: %w", context.Cause(ctx))
		}
	}
}

// finish does once what follows the last look.
func (b *books) finish(ctx context.Context, seal seal, opts Options) (Report, error) {
	if opts.Against != nil {
		if err := b.compare(ctx, opts.Against); err != nil {
			return Report{}, err
		}
	}
	if b.report.Balanced && opts.Close {
		if err := seal.closeThrough(ctx, b.records, b.provedThrough()); err != nil {
			return b.report, err
		}
	}
	return b.report, nil
}

// books is one look at stream and bucket. It belongs to one goroutine.
type books struct {
	commands *stream.Stream
	records  *kvstate.Store

	stored    bitmap              // in the stream
	accounted bitmap              // by a record or an entry of its own
	settled   bitmap              // by a record whose command needs nothing more
	suspects  map[uint64][]string // sequences met more than once, and by whom
	highest   uint64              // sequence that anything accounts for
	report    Report
}

func newBooks(commands *stream.Stream, records *kvstate.Store, closed, last uint64) *books {
	return &books{
		commands: commands, records: records,
		stored: newBitmap(closed, last), accounted: newBitmap(closed, last), settled: newBitmap(closed, last),
		suspects: map[uint64][]string{},
		report: Report{
			LastSeq: last, ClosedThrough: closed,
			Missing: []uint64{}, Doubled: []Doubled{}, Stranded: []string{}, Corrupt: []string{}, MissingIDs: []MissingID{},
		},
	}
}

func (b *books) read(ctx context.Context) error {
	err := b.commands.Sequences(ctx, b.report.LastSeq, func(seq uint64, _ string) error {
		b.stored.add(seq)
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := b.records.Scan(ctx, func(e kvstate.Entry) error { return b.entry(ctx, e) }); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := b.double(ctx); err != nil {
		return err
	}
	if err := b.beyond(ctx); err != nil {
		return err
	}
	b.balance()
	return nil
}

// entry books one entry of the bucket.
func (b *books) entry(ctx context.Context, e kvstate.Entry) error {
	if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
		b.report.Absorbed++
		b.book(seq, true)
		return nil
	}
	if kvstate.Own(e.Key) {
		return nil
	}
	if e.Record == nil { // it does not decode
		list(&b.report.Corrupt, &b.report.CorruptCount, string(e.Key))
		return nil
	}
	r := e.Record
	switch r.State {
	case kvstate.Completed:
		b.report.Completed++
	case kvstate.Parked:
		b.report.Parked++
	case kvstate.Cancelled:
		b.report.Cancelled++
	case kvstate.Discarded:
		b.report.Discarded++
	}
	for _, seq := range r.Seqs {
		b.highest = max(b.highest, seq)
	}
	if !r.State.Terminal() {
		stranded, err := b.stranded(ctx, e)
		if err != nil {
			return err
		}
		if stranded {
			list(&b.report.Stranded, &b.report.StrandedCount, r.ID)
			return nil
		}
	}
	for _, seq := range r.Seqs {
		b.book(seq, r.State.Terminal())
	}
	return nil
}

// book notes that something accounts for seq.
func (b *books) book(seq uint64, settled bool) {
	b.highest = max(b.highest, seq)
	if b.accounted.add(seq) && len(b.suspects) < maxSuspects {
		b.suspects[seq] = nil
	}
	if settled {
		b.settled.add(seq)
	}
}

// stranded reports whether the command of a record without an outcome has left
// the stream, so that no worker will ever get it again.
func (b *books) stranded(ctx context.Context, e kvstate.Entry) (bool, error) {
	for _, seq := range e.Record.Seqs {
		// Newer ones than the audit looks at are in the stream, or settled since.
		if seq > b.report.LastSeq || b.stored.has(seq) {
			return false, nil
		}
	}
	// The walk did not meet it. A copy may lie under another sequence, as one
	// that was sent back does, and a replica may have been behind: the leader knows.
	_, err := b.commands.Find(ctx, e.Key)
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, stream.ErrNotFound) {
		return false, fmt.Errorf("audit: look for command %q: %w", e.Record.ID, err)
	}
	now, err := b.records.Read(ctx, e.Key)
	if err != nil {
		return false, fmt.Errorf("audit: read record of %q: %w", e.Record.ID, err)
	}
	// Whoever wrote it since still has the command, or settled it.
	return now.Revision == e.Revision, nil
}

// double finds out which of the sequences that were met more than once belong
// to several commands. The others are records that were replaced meanwhile.
func (b *books) double(ctx context.Context) error {
	if len(b.suspects) == 0 {
		return nil
	}
	note := func(seq uint64, id string) {
		if ids, ok := b.suspects[seq]; ok && !slices.Contains(ids, id) {
			b.suspects[seq] = append(ids, id)
		}
	}
	err := b.records.Scan(ctx, func(e kvstate.Entry) error {
		if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
			note(seq, string(e.Raw))
		} else if e.Record != nil {
			for _, seq := range e.Record.Seqs {
				note(seq, e.Record.ID)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	found := make([]Doubled, 0)
	for seq, ids := range b.suspects {
		if len(ids) > 1 {
			found = append(found, Doubled{Seq: seq, IDs: ids})
		}
	}
	slices.SortFunc(found, func(a, b Doubled) int { return int(int64(a.Seq) - int64(b.Seq)) })
	for _, d := range found {
		list(&b.report.Doubled, &b.report.DoubledCount, d)
	}
	return nil
}

// beyond looks for sequences on record that the stream never handed out, which
// it did before it was set back.
func (b *books) beyond(ctx context.Context) error {
	if b.highest <= b.report.LastSeq {
		return nil
	}
	// A record is written after its command, so this is as new as the records read.
	now, err := b.commands.State(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if b.highest > now.LastSeq {
		b.report.Beyond = b.highest
	}
	return nil
}

// balance draws the line.
func (b *books) balance() {
	r := &b.report
	for seq := r.ClosedThrough + 1; seq <= r.LastSeq; seq++ {
		if !b.stored.has(seq) && !b.accounted.has(seq) {
			list(&r.Missing, &r.MissingCount, seq)
		}
	}
	r.Pending = b.stored.without(&b.settled)
	r.Balanced = r.MissingCount+r.DoubledCount+r.StrandedCount+r.CorruptCount+r.Beyond == 0
}

// provedThrough returns the last sequence up to which every one has an outcome
// or is parked. A command that is in the stream stops it.
func (b *books) provedThrough() uint64 {
	for seq := b.report.ClosedThrough + 1; seq <= b.report.LastSeq; seq++ {
		if b.stored.has(seq) || !b.settled.has(seq) {
			return seq - 1
		}
	}
	return b.report.LastSeq
}
