package audit

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// What a finding is about.
const (
	FindingMissing  = "missing"  // nothing accounts for a sequence
	FindingStranded = "stranded" // a command without an outcome has left the stream
	FindingDoubled  = "doubled"  // several commands account for a sequence
	FindingCorrupt  = "corrupt"  // a record does not decode
	FindingSetBack  = "set_back" // the stream ends before what is on record or sealed, was made anew, or restored
	// FindingMisplaced is a record in a shard that its id does not belong to.
	FindingMisplaced = "misplaced"
	// FindingLingering is a command in the stream that its queue has as acked, or has
	// given up, so that no worker gets it any more.
	FindingLingering = "lingering"
)

// Finding is one thing that is amiss, for people.
type Finding struct {
	What    string `json:"what"`            // one of the constants above
	Shard   *int   `json:"shard,omitempty"` // nil in a pool that is not sharded
	Seq     uint64 `json:"seq,omitempty"`
	ID      string `json:"id,omitempty"`      // if it is known
	Subject string `json:"subject,omitempty"` // of the command, if it is known
	Cause   string `json:"cause"`             // "likely" where it is no more than that
	Remedy  string `json:"remedy"`
}

// Where names the shard in a line; empty in a pool that is not sharded.
func (f Finding) Where() string {
	if f.Shard == nil {
		return ""
	}
	return fmt.Sprintf(" in shard %d:", *f.Shard)
}

// String is the finding in one line.
func (f Finding) String() string {
	var b strings.Builder
	b.WriteString(f.What)
	b.WriteString(f.Where())
	if f.Seq > 0 {
		fmt.Fprintf(&b, " sequence %d", f.Seq)
	}
	if f.ID != "" {
		fmt.Fprintf(&b, " %q", f.ID)
	}
	if f.Subject != "" {
		fmt.Fprintf(&b, " (%s)", f.Subject)
	}
	fmt.Fprintf(&b, ": %s; %s", f.Cause, f.Remedy)
	return b.String()
}

// explain makes a finding of everything that is amiss.
func (b *books) explain(ctx context.Context) {
	r := &b.report
	add := func(f Finding) { list(&r.Findings, &r.FindingCount, f) }
	if r.Beyond > 0 || r.Replaced {
		add(b.setBack())
	}
	told := map[command.Token]bool{}
	if r.MissingCount > 0 {
		c, listed := b.clues(ctx), map[uint64]string{}
		for _, m := range r.MissingIDs {
			listed[m.Sequence] = m.ID
		}
		for i, seq := range r.Missing {
			f := c.missing(ctx, i, seq)
			if s := b.straggler(seq); s != nil {
				told[s.key] = true
				f = b.strandedFinding(s, seq)
			}
			if id := listed[seq]; f.ID == "" {
				f.ID = id
			}
			add(f)
		}
		r.FindingCount += r.MissingCount - uint64(len(r.Missing))
	}
	for i := range b.waiting {
		if s := &b.waiting[i]; !told[s.key] {
			add(b.strandedFinding(s, 0))
		}
	}
	for _, d := range r.Doubled {
		add(Finding{
			What: FindingDoubled, Seq: d.Seq,
			Cause:  fmt.Sprintf("%s account for it: likely an older copy of the stream was put back, which then handed it out again, or records of another pool were copied in", quoted(d.IDs)),
			Remedy: "look at each with tallyman why ID; what was accepted in between may be gone: tallyman audit --against FILE",
		})
	}
	for _, key := range r.Corrupt {
		add(b.damaged(ctx, command.Token(key)))
	}
	for _, key := range r.Misplaced {
		add(b.misplaced(command.Token(key)))
	}
	for _, l := range b.lingering {
		add(b.lingeringFinding(l))
	}
	r.FindingCount += r.LingeringCount - uint64(len(b.lingering))
}

// setBack is the finding about a stream that is not what it was.
func (b *books) setBack() Finding {
	r := &b.report
	f := Finding{
		What: FindingSetBack, Seq: r.Beyond,
		Remedy: fmt.Sprintf("submit again what was accepted since (tallyman audit --against FILE names it); once that is done, begin anew with: nats kv del %s %s", b.records.Bucket(), kvstate.KeyAudit),
	}
	switch {
	case r.Replaced:
		f.Cause = fmt.Sprintf("the stream was made anew, or restored from a backup, at %s; the books were sealed through sequence %d of the one before, and what that one held and this one does not is gone", moment(b.created), r.SealedThrough)
		if r.LastSeq >= r.SealedThrough {
			f.Remedy = fmt.Sprintf("%s; or, if its sequences are those of the one before, keep the seal with: nats kv put %s %s '{\"sealed_through\":%d}'", f.Remedy, b.records.Bucket(), kvstate.KeyAudit, r.SealedThrough)
		}
	case r.SealedThrough >= r.Beyond:
		f.Cause = fmt.Sprintf("the stream ends at sequence %d and the books are sealed through %d: an older copy of the stream was put back, or the stream was replaced", r.LastSeq, r.SealedThrough)
	case b.absorbed == r.Beyond:
		key := kvstate.AbsorbedKey(r.Beyond)
		f.Cause = fmt.Sprintf("the entry %s accounts for sequence %d and the stream ends at %d: it was written by hand and names another sequence than it ought to, or an older copy of the stream was put back, or the stream was replaced", key, r.Beyond, r.LastSeq)
		f.Remedy = fmt.Sprintf("if it was written by hand: nats kv del %s %s; otherwise submit again what was accepted since: tallyman audit --against FILE names it; the books balance once the stream has passed that sequence", b.records.Bucket(), key)
	default:
		f.Cause = fmt.Sprintf("a record accounts for sequence %d and the stream ends at %d: an older copy of the stream was put back, or the stream was replaced", r.Beyond, r.LastSeq)
		f.Remedy = "submit again what was accepted since: tallyman audit --against FILE names it; the books balance once the stream has passed that sequence, or the record has expired"
	}
	return f
}

// straggler returns the stranded command that accounts for seq, if any.
func (b *books) straggler(seq uint64) *straggler {
	for i := range b.waiting {
		for _, mine := range b.waiting[i].seqs {
			if mine == seq {
				return &b.waiting[i]
			}
		}
	}
	return nil
}

func (b *books) strandedFinding(s *straggler, seq uint64) Finding {
	if n := len(s.seqs); seq == 0 && n > 0 {
		seq = s.seqs[n-1]
	}
	f := Finding{What: FindingStranded, Seq: seq, ID: s.id, Subject: b.subject(s.queue, s.kind, s.key)}
	if s.state == kvstate.Requeued {
		f.Cause = fmt.Sprintf("requeued by %s at %s and never published: the requeue was cut off", s.owner, moment(s.at))
		f.Remedy = "tallyman requeue " + quote(s.id)
		return f
	}
	f.Cause = fmt.Sprintf("deleted from the stream by hand while it was %s (attempt %d by %s, %s)", s.state, s.attempt, s.owner, moment(s.at))
	f.Remedy = "a worker that is still at it may yet complete it; otherwise publish it once more with the same payload, and it goes on where it was: nats pub " + f.Subject
	if s.state != kvstate.Prepared {
		f.Remedy += "; or give it up: tallyman cancel " + quote(s.id)
	}
	return f
}

// damaged is the finding about a record that does not decode.
func (b *books) damaged(ctx context.Context, key command.Token) Finding {
	f := Finding{What: FindingCorrupt, ID: idOf(key), Cause: "its record is damaged"}
	e, err := b.records.Read(ctx, key)
	if err != nil || e.Err == nil {
		f.Cause, f.Remedy = "its record was damaged when the books were read", "audit again"
		return f
	}
	f.Cause = fmt.Sprintf("its record, revision %d of %s, is damaged: %v", e.Revision, moment(e.At), e.Err)
	if e.Label != "" {
		f.Cause += fmt.Sprintf("; by its header it was %s", e.Label)
	}
	if there, err := b.commands.Find(ctx, key); err == nil {
		f.Seq, f.Subject = there.Seq, there.Subject
		f.Remedy = "the worker that gets it next keeps the bytes, and goes on from the revision before or parks it as corrupt"
		return f
	}
	f.Remedy = fmt.Sprintf("nothing acts on it. Find out elsewhere what became of the command, then make the id as if never used: nats kv purge %s %s", b.records.Bucket(), key)
	return f
}

// subject is that of a command, empty if it is not known.
func (b *books) subject(queue, kind string, key command.Token) string {
	if queue == "" || kind == "" || kvstate.Aside(key) {
		return ""
	}
	return b.commands.Subject(queue, kind, key)
}

// idOf is the id that is filed under key; the key itself where that is none.
func idOf(key command.Token) string {
	if id, err := dedupe.ParseToken(key); err == nil && !strings.HasPrefix(string(key), "_") {
		return id
	}
	return string(key)
}

// quote spells an id as a shell takes it.
func quote(id string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/.:@+,"
	if id != "" && strings.Trim(id, plain) == "" && !strings.HasPrefix(id, "-") {
		return id
	}
	text := "'" + strings.ReplaceAll(id, "'", `'\''`) + "'"
	if strings.HasPrefix(id, "-") {
		text = "-- " + text
	}
	return text
}

// quoted lists ids, of many the first few.
func quoted(ids []string) string {
	const most = 3
	var parts []string
	for i, id := range ids {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(ids)-most))
			break
		}
		parts = append(parts, strconv.Quote(id))
	}
	return strings.Join(parts, ", ")
}

// moment spells a time the same on every machine.
func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }
