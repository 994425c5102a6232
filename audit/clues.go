package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// clues is what stream and bucket still tell about the sequences that are
// missing: those of the report's list, which bounds all of it.
type clues struct {
	b         *books
	seqs      []uint64    // that are missing, rising
	before    []time.Time // when each had been handed out at the latest
	below     []uint64    // the nearest sequence before each that is in the stream; 0 for none
	final     uint64      // first sequence that an entry accounts for which expires, if any is left
	deleted   map[uint64]deletion
	erased    []deletion // of whose records nothing is left but the marker
	damaged   []string   // ids whose record is damaged, or was and whose bytes are kept
	delivered uint64     // last sequence that any queue has delivered, or passed over in a purge
	handed    uint64     // deliveries that the queues have made in all, repeated ones too
	left      uint64     // sequences that have left the stream
	top       uint64     // last sequence that anything accounts for, or that is stored
	now       time.Time
	at        map[uint64]time.Time // when a stored sequence was stored
	err       error                // why the evidence is not whole
}

// deletion is a record that somebody deleted by hand.
type deletion struct {
	id      string
	subject string
	state   kvstate.State // empty if not known
	at      time.Time
}

// clues gathers them.
func (b *books) clues(ctx context.Context) *clues {
	c := &clues{
		b: b, seqs: b.report.Missing,
		before: make([]time.Time, len(b.report.Missing)), below: make([]uint64, len(b.report.Missing)),
		final: math.MaxUint64, deleted: map[uint64]deletion{}, at: map[uint64]time.Time{}, now: time.Now(),
	}
	last := b.lastAt
	if last.IsZero() {
		last = c.now
	}
	for i := range c.before {
		c.before[i] = last
	}
	c.err = errors.Join(c.records(ctx), c.markers(ctx), c.queues(ctx))
	for i := len(c.before) - 2; i >= 0; i-- {
		if c.before[i+1].Before(c.before[i]) {
			c.before[i] = c.before[i+1]
		}
	}
	c.neighbours()
	c.left = b.report.LastSeq - b.stored.count()
	for seq := b.report.LastSeq; seq >= b.report.FirstSeq && c.top == 0; seq-- {
		if b.stored.has(seq) || b.accounted.has(seq) {
			c.top = seq
		}
	}
	return c
}

// records learns from those that are there when later sequences had been handed
// out at the latest, and whose are damaged.
func (c *clues) records(ctx context.Context) error {
	return c.b.records.Scan(ctx, func(e kvstate.Entry) error {
		if key, ok := kvstate.CorruptOf(e.Key); ok {
			c.suspect(idOf(key))
			return nil
		}
		seq, ok := kvstate.AbsorbedSeq(e.Key)
		switch {
		case ok:
			c.latest(seq, e.At)
			c.final = min(c.final, seq)
		case kvstate.Own(e.Key):
		case e.Record == nil:
			c.suspect(idOf(e.Key))
		default:
			for _, seq := range e.Record.Seqs {
				c.latest(seq, e.At)
				if e.Record.State.Final() {
					c.final = min(c.final, seq)
				}
			}
		}
		return nil
	})
}

func (c *clues) suspect(id string) {
	if len(c.damaged) < ListLimit && !slices.Contains(c.damaged, id) {
		c.damaged = append(c.damaged, id)
	}
}

// latest notes that seq, and with it every sequence before, had been handed out
// by then.
func (c *clues) latest(seq uint64, at time.Time) {
	i, _ := slices.BinarySearch(c.seqs, seq)
	if i--; i >= 0 && at.Before(c.before[i]) {
		c.before[i] = at
	}
}

// markers learns whose records were deleted.
func (c *clues) markers(ctx context.Context) error {
	looked := 0
	return c.b.records.Markers(ctx, func(e kvstate.Entry) error {
		if looked++; kvstate.Own(e.Key) || looked > ListLimit {
			return nil
		}
		if _, err := c.b.commands.Find(ctx, e.Key); err == nil {
			return nil // the command is there: its sequence is not missing
		}
		d, seqs, err := c.remains(ctx, e)
		if err != nil {
			return err
		}
		for _, seq := range seqs {
			c.deleted[seq] = d
		}
		if seqs == nil {
			c.erased = append(c.erased, d)
		}
		return nil
	})
}

// remains reads what is left of a record below the marker of its deletion.
func (c *clues) remains(ctx context.Context, marker kvstate.Entry) (deletion, []uint64, error) {
	d := deletion{id: idOf(marker.Key), at: marker.At}
	old, err := c.b.records.Oldest(ctx, marker.Key)
	if err != nil || old.Record == nil {
		return d, nil, err
	}
	r := old.Record
	d.id, d.state, d.subject = r.ID, r.State, c.b.subject(r.Queue, r.Kind, marker.Key)
	return d, r.Seqs, nil
}

// queues learns how far commands have been delivered.
func (c *clues) queues(ctx context.Context) error {
	queues, err := c.b.commands.Queues(ctx)
	for _, q := range queues {
		c.delivered = max(c.delivered, q.Delivered)
		c.handed += q.Deliveries
	}
	return err
}

// writeOff is how a person accounts for a sequence that nothing accounts for.
func writeOff(records *kvstate.Store) string {
	key := strings.TrimSuffix(string(kvstate.AbsorbedKey(0)), "0") + "SEQUENCE"
	return fmt.Sprintf("write it off with: nats kv put %s %s WHY", records.Bucket(), key)
}

// missing is the finding about sequence number i of the list.
func (c *clues) missing(ctx context.Context, i int, seq uint64) Finding {
	f := Finding{What: FindingMissing, Seq: seq}
	off := writeOff(c.b.records)
	again := "submit the command again if a producer's list has it (tallyman audit --against FILE); then " + off
	d, deleted := c.deleted[seq]
	expired, why := c.expired(ctx, i)
	switch {
	case deleted:
		f.ID, f.Subject = d.id, d.subject
		f.Cause = fmt.Sprintf("its record, then %s, was deleted by hand at %s", d.state, moment(d.at))
		f.Remedy = "it had its outcome, so no work was lost; " + off
		if !d.state.Final() {
			f.Remedy = "it has no outcome: submit it again; then " + off
		}
	case seq > c.delivered:
		f.Cause = fmt.Sprintf("likely deleted from the stream by hand before a worker got it: the queues have delivered up to sequence %d", c.delivered)
		f.Remedy = again
	case len(c.erased) == 1 && c.unexplained() == 1 && !expired:
		f.ID = c.erased[0].id
		f.Cause = fmt.Sprintf("likely its record was deleted by hand at %s: the marker of that is left, and of no other", moment(c.erased[0].at))
		f.Remedy = "find out elsewhere whether it had an outcome: submitted again, it runs as if it were new; then " + off
	case expired:
		f.Cause = fmt.Sprintf("likely its receipt expired before the books were sealed: receipts are kept for %v, and %s", c.b.records.Retention(), why)
		f.Remedy = fmt.Sprintf(`seal within the retention: tallyman audit --every 1m --seal; begin behind what has expired with: nats kv put %s %s '{"sealed_through":SEQUENCE}'`,
			c.b.records.Bucket(), kvstate.KeyAudit)
	case len(c.damaged) > 0:
		f.Cause = "likely the record that accounted for it is damaged, or was: " + quoted(c.damaged)
		f.Remedy = "see tallyman why ID; once the command is dealt with, " + off
	case len(c.erased) > 0:
		ids := make([]string, len(c.erased))
		for i, d := range c.erased {
			ids[i] = d.id
		}
		f.Cause = "likely its record was deleted by hand: markers of that are left of " + quoted(ids)
		f.Remedy = "find out elsewhere whether those had an outcome: submitted again, they run as if they were new; then " + off
	case seq > c.top && c.handed < c.left:
		f.Cause = fmt.Sprintf("likely purged from the stream before a worker got it: %s left the stream with %s", plural.Count(c.left, "sequence"), plural.Count(c.handed, "delivery"))
		f.Remedy = again
	case seq > c.top:
		f.Cause = fmt.Sprintf("likely an older copy of the bucket was put back, or its records were purged without a trace: nothing accounts for any sequence above %d", c.top)
		f.Remedy = again
	default:
		f.Cause = "likely deleted from the stream by hand before it had an outcome, or its record was taken out of the bucket without a trace"
		f.Remedy = again
	}
	if c.err != nil {
		f.Cause += fmt.Sprintf(" (not all of the evidence could be read: %v)", c.err)
	}
	return f
}

// unexplained counts the sequences of which no deleted record is known.
func (c *clues) unexplained() (n uint64) {
	n = c.b.report.MissingCount
	for _, seq := range c.seqs {
		if _, ok := c.deleted[seq]; ok {
			n--
		}
	}
	return n
}

// neighbours finds the nearest stored sequence before each that is missing.
func (c *clues) neighbours() {
	seq, last := c.b.report.FirstSeq, uint64(0)
	for i, missing := range c.seqs {
		for ; seq < missing; seq++ {
			if c.b.stored.has(seq) {
				last = seq
			}
		}
		c.below[i] = last
	}
}

// expired reports whether the receipt of sequence number i of the list is
// likely gone because its time was over: the pool is older than its retention,
// and either the sequence is, too, or all that expires before it has gone.
func (c *clues) expired(ctx context.Context, i int) (likely bool, why string) {
	keep := c.b.records.Retention()
	horizon := c.now.Add(-keep)
	switch {
	case keep <= 0 || c.b.created.After(horizon) || c.stored(ctx, c.below[i]).After(horizon):
		return false, "" // it is younger, as is what came before it
	case c.before[i].Before(horizon):
		return true, "it was accepted longer ago"
	case c.seqs[i] < c.final:
		return true, "none is left from before it"
	}
	return false, ""
}

// stored returns when a sequence was stored that is in the stream; zero if that
// cannot be found out.
func (c *clues) stored(ctx context.Context, seq uint64) time.Time {
	at, known := c.at[seq]
	if !known && seq > 0 {
		if there, err := c.b.commands.Get(ctx, seq); err == nil {
			at = there.At
		}
		c.at[seq] = at
	}
	return at
}
