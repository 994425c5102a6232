package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// maxSuspects bounds the sequences of which one scan finds out who accounts for them.
const maxSuspects = 1 << 14

// books is one look at stream and bucket. It belongs to one goroutine.
type books struct {
	commands *stream.Stream
	records  *kvstate.Store
	intake   *stream.Stream // where what belongs here may wait that was published by hand; nil if it is commands
	shard    int
	shards   int // how many the pool has
	seal     seal
	created  time.Time // of the stream
	lastAt   time.Time // when LastSeq was handed out

	stored    bitmap // in the stream
	accounted bitmap // by a record or an entry of its own
	settled   bitmap // by a record whose command needs nothing more
	twice     bitmap // met more than once: by several commands, or by a record that was replaced meanwhile
	suspects  uint64 // how many are in twice
	highest   uint64 // sequence that anything accounts for
	absorbed  uint64 // the highest that has an entry of its own
	waiting   []straggler
	sentBack  []kvstate.Entry   // requeued, and not met in the stream
	over      map[string]uint64 // up to where a queue delivers nothing any more
	acked     bitmap            // in the stream and over for its queue, where acks take nothing out
	lying     []uint64          // what may linger
	lingering []lingering
	agree     bool // nothing is amiss but what was looked for again: what lingers, and what was sent back
	report    Report
}

// straggler is what is told of a stranded command.
type straggler struct {
	key     command.Token
	id      string
	queue   string
	kind    string
	state   kvstate.State
	attempt int
	owner   string
	at      time.Time
	seqs    []uint64
}

// newBooks begins a look at the sequences behind the seal. A stream that ends
// before it was set back or made anew: then there is nothing that could be proved.
func newBooks(commands *stream.Stream, records *kvstate.Store, sealed, last uint64) *books {
	from := min(sealed, last)
	b := &books{
		commands: commands, records: records, highest: sealed,
		stored: newBitmap(from, last), accounted: newBitmap(from, last), settled: newBitmap(from, last), twice: newBitmap(from, last),
		report: Report{
			LastSeq: last, SealedThrough: sealed, FirstSeq: from + 1,
			Missing: []uint64{}, Doubled: []Doubled{}, Stranded: []string{}, Corrupt: []string{}, MissingIDs: []MissingID{}, Findings: []Finding{},
		},
	}
	if commands != nil && commands.Sweeps() {
		b.acked = newBitmap(from, last)
	}
	return b
}

func (b *books) read(ctx context.Context) error {
	if err := b.survey(ctx); err != nil {
		return err
	}
	err := b.commands.Sequences(ctx, b.report.LastSeq, func(seq uint64, subject string) error {
		b.stored.add(seq)
		b.passed(seq, subject)
		return nil
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := b.records.Scan(ctx, func(e kvstate.Entry) error { return b.entry(ctx, e) }); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := b.sent(ctx); err != nil {
		return err
	}
	if err := b.double(ctx); err != nil {
		return err
	}
	if err := b.beyond(ctx); err != nil {
		return err
	}
	if err := b.linger(ctx); err != nil {
		return err
	}
	b.balance()
	return nil
}

// entry books one entry of the bucket.
func (b *books) entry(ctx context.Context, e kvstate.Entry) error {
	if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
		b.report.Absorbed++
		b.absorbed = max(b.absorbed, seq)
		b.book(seq, true)
		return nil
	}
	if kvstate.Own(e.Key) {
		return nil
	}
	if !kvstate.Aside(e.Key) && dedupe.Shard(e.Key, b.shards) != b.shard {
		list(&b.report.Misplaced, &b.report.MisplacedCount, string(e.Key))
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
		switch {
		case stranded && r.State != kvstate.Requeued:
			b.strand(e)
			return nil
		case stranded && len(b.sentBack) < maxSuspects: // its sequences were parked, and lack nothing
			b.sentBack = append(b.sentBack, remembered(e))
		case stranded:
			b.strand(e)
		}
	}
	for _, seq := range r.Seqs {
		b.book(seq, r.State.Terminal())
	}
	return nil
}

// strand notes a command that is stranded.
func (b *books) strand(e kvstate.Entry) {
	r := e.Record
	list(&b.report.Stranded, &b.report.StrandedCount, r.ID)
	if len(b.waiting) < ListLimit {
		b.waiting = append(b.waiting, straggler{e.Key, r.ID, r.Queue, r.Kind, r.State, r.Attempt, r.Owner, e.At, r.Seqs})
	}
}

// remembered is an entry without what takes room.
func remembered(e kvstate.Entry) kvstate.Entry {
	r := e.Record
	e.Raw = nil
	e.Record = &kvstate.Record{ID: r.ID, Kind: r.Kind, Queue: r.Queue, State: r.State, Attempt: r.Attempt, Owner: r.Owner, Seqs: r.Seqs}
	return e
}

// sent finds out which of what was sent back does not get into the stream. The
// record comes first, so while many are requeued there are always some on their way.
func (b *books) sent(ctx context.Context) error {
	for look := 1; look < looks && len(b.sentBack) > 0; look++ {
		if err := again(ctx); err != nil {
			return err
		}
		var still []kvstate.Entry
		for _, e := range b.sentBack {
			stranded, err := b.stranded(ctx, e)
			if err != nil {
				return err
			}
			if stranded {
				still = append(still, e)
			}
		}
		b.sentBack = still
	}
	for _, e := range b.sentBack {
		b.strand(e)
	}
	return nil
}

// book notes that something accounts for seq.
func (b *books) book(seq uint64, settled bool) {
	b.highest = max(b.highest, seq)
	if b.accounted.add(seq) && !b.twice.add(seq) {
		b.suspects++
	}
	if settled {
		b.settled.add(seq)
	}
}

// stranded reports whether the command of a record without an outcome has left
// the stream, so that no worker will ever get it again.
func (b *books) stranded(ctx context.Context, e kvstate.Entry) (bool, error) {
	// What was sent back gets a new sequence; those that were parked await the sweep.
	if !b.commands.Sweeps() || e.Record.State != kvstate.Requeued {
		for _, seq := range e.Record.Seqs {
			// Newer ones than the audit looks at are in the stream, or settled since.
			if seq > b.report.LastSeq || b.stored.has(seq) {
				return false, nil
			}
		}
	}
	// The walk did not meet it. A copy may lie under another sequence, as one
	// that was sent back does, and a replica may have been behind: the leader knows.
	switch there, err := b.commands.Find(ctx, e.Key); {
	case err == nil && !b.commands.Sweeps():
		return false, nil
	case err == nil:
		if dead, err := b.dead(ctx, e.Record, there); err != nil || !dead {
			return false, err
		}
	case !errors.Is(err, stream.ErrNotFound):
		return false, fmt.Errorf("audit: look for command %q: %w", e.Record.ID, err)
	}
	now, err := b.records.Read(ctx, e.Key)
	if err != nil {
		return false, fmt.Errorf("audit: read record of %q: %w", e.Record.ID, err)
	}
	// Whoever wrote it since still has the command, or settled it.
	return now.Revision == e.Revision, nil
}

// dead reports whether the newest copy of an unfinished command, and every
// other that the walk or a replica shows, is one that no worker will get any
// more: it was acked, and awaits the sweep.
func (b *books) dead(ctx context.Context, r *kvstate.Record, newest stream.Stored) (bool, error) {
	copies, err := b.commands.Copies(ctx, newest.Token)
	if err != nil {
		return false, fmt.Errorf("audit: look for command %q: %w", r.ID, err)
	}
	copies = append(copies, stream.Lying{Seq: newest.Seq, Queue: newest.Queue, Token: newest.Token})
	for _, c := range copies {
		q, err := b.commands.Queue(ctx, c.Queue)
		if err != nil && !errors.Is(err, stream.ErrNoQueue) {
			return false, fmt.Errorf("audit: %w", err)
		}
		if c.Seq > q.Floor {
			return false, nil // not acked, as far as the server tells
		}
		fate, err := b.records.FateOf(ctx, kvstate.Lying{Seq: c.Seq, Token: c.Token})
		if err != nil {
			return false, fmt.Errorf("audit: %w", err)
		}
		if !fate.Accounted {
			return false, nil
		}
	}
	return true, nil
}

// double finds out which of the sequences that were met more than once belong
// to several commands. The others are records that were replaced meanwhile. It
// scans once for every maxSuspects of them, which bounds its memory.
func (b *books) double(ctx context.Context) error {
	for from := b.twice.base + 1; b.suspects > 0; {
		owners := map[uint64][]string{}
		seq := from
		for ; seq <= b.twice.last && len(owners) < maxSuspects; seq++ {
			if b.twice.has(seq) {
				owners[seq] = nil
			}
		}
		if len(owners) == 0 {
			return nil
		}
		from = seq
		if err := b.owners(ctx, owners); err != nil {
			return err
		}
		found := make([]Doubled, 0)
		for seq, ids := range owners {
			if len(ids) > 1 {
				found = append(found, Doubled{Seq: seq, IDs: ids})
			}
		}
		slices.SortFunc(found, func(a, b Doubled) int { return cmp.Compare(a.Seq, b.Seq) })
		for _, d := range found {
			list(&b.report.Doubled, &b.report.DoubledCount, d)
		}
	}
	return nil
}

// owners fills in which ids account for the sequences in the map.
func (b *books) owners(ctx context.Context, of map[uint64][]string) error {
	note := func(seq uint64, id string) {
		if ids, ok := of[seq]; ok && !slices.Contains(ids, id) {
			of[seq] = append(ids, id)
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
	return nil
}

// beyond looks for sequences, on record or sealed, that the stream never handed
// out, which it did before it was set back.
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
	for seq := r.FirstSeq; seq <= r.LastSeq; seq++ {
		if !b.stored.has(seq) && !b.accounted.has(seq) {
			list(&r.Missing, &r.MissingCount, seq)
		}
	}
	r.Pending = b.stored.without(&b.settled)
	amiss := r.MissingCount + r.DoubledCount + r.StrandedCount + r.CorruptCount + r.MisplacedCount + r.Beyond
	b.agree = amiss == uint64(len(b.sentBack)) && !r.Replaced
	r.Balanced = amiss+r.LingeringCount == 0 && !r.Replaced
}

// provedThrough returns the last sequence up to which every one has an outcome
// or is parked. A command that is in the stream stops it.
func (b *books) provedThrough() uint64 {
	for seq := b.report.FirstSeq; seq <= b.report.LastSeq; seq++ {
		if b.stored.has(seq) || !b.settled.has(seq) {
			return seq - 1
		}
	}
	return b.report.LastSeq
}
