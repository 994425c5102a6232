package story

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// Tell merges evidence into one timeline. It is pure.
func Tell(e Evidence) Story {
	t := &telling{Evidence: e, submitted: map[uint64]time.Time{}}
	t.tellAside()
	t.tellCopies()
	t.tellTrail()
	t.tellRevisions()
	t.tellNotes()
	t.tellFiled()
	t.tellFollowUps()
	for _, x := range e.Extra {
		x.Text = clean(x.Text)
		t.add(x.At, x)
	}
	t.tellUnknown()
	s := Story{ID: e.ID, State: t.state(), Unknown: t.unknown, Verdict: t.verdict()}
	slices.SortStableFunc(t.found, func(a, b found) int { return a.order.Compare(b.order) })
	s.Events = make([]Event, 0, len(t.found))
	for _, f := range t.found {
		f.At = f.At.UTC()
		if f.At.IsZero() {
			f.At = time.Time{}
		}
		s.Events = append(s.Events, f.Event)
	}
	return s
}

// telling is one Tell under way.
type telling struct {
	Evidence
	found     []found
	unknown   []string
	submitted map[uint64]time.Time // when a sequence was stored, as far as anything says so
	missing   []uint64             // sequences of which nothing says so
	trail     []step
}

// found is an event and its place, which is not always that of its time.
type found struct {
	Event
	order time.Time
}

func (t *telling) add(order time.Time, e Event) { t.found = append(t.found, found{e, order}) }

func (t *telling) cannot(format string, args ...any) {
	t.unknown = append(t.unknown, fmt.Sprintf(format, args...))
}

// tellCopies tells when each sequence was stored.
func (t *telling) tellCopies() {
	for _, n := range t.Notes {
		if n.Seq > 0 && !n.SubmittedAt.IsZero() {
			t.submitted[n.Seq] = n.SubmittedAt
		}
	}
	there := map[uint64]Copy{}
	for _, c := range t.Copies {
		there[c.Seq], t.submitted[c.Seq] = c, c.At
	}
	seqs := make([]uint64, 0, len(t.submitted))
	for seq := range t.submitted {
		seqs = append(seqs, seq)
	}
	if r := t.record(); r != nil {
		for _, seq := range r.Seqs {
			if _, known := t.submitted[seq]; !known && !slices.Contains(seqs, seq) {
				seqs, t.missing = append(seqs, seq), append(t.missing, seq)
			}
		}
	}
	slices.Sort(seqs)
	if t.Parent != nil {
		t.add(time.Time{}, Event{Source: SourceRecord, What: "follow_up", Text: fmt.Sprintf("It is a follow-up of %s, which is %s.", quote(t.Parent.ID), word(string(t.Parent.State)))})
	}
	if c := t.Intake; c != nil {
		t.add(c.At, Event{At: c.At, Source: SourceStream, What: "stored",
			Text: fmt.Sprintf("Sequence %d of shard 0 was stored, of kind %s in queue %s, where it was published by hand, and waits there for a worker that carries it to its own shard.", c.Seq, word(c.Kind), word(c.Queue))})
	}
	for _, seq := range seqs {
		e := Event{At: t.submitted[seq], Source: SourceStream, What: "stored", Text: fmt.Sprintf("Sequence %d was stored.", seq)}
		if c, ok := there[seq]; ok && !c.Settled {
			e.Text = fmt.Sprintf("Sequence %d was stored, of kind %s in queue %s, and is still in the stream.", seq, word(c.Kind), word(c.Queue))
		}
		t.add(e.At, e)
	}
}

// tellRevisions tells of progress, where two revisions prove that it was saved,
// and of revisions that are damaged or were deleted.
func (t *telling) tellRevisions() {
	all := slices.Concat(t.Earlier, []kvstate.Entry{t.Entry})
	for i, e := range all {
		switch {
		case e.Err != nil:
			t.add(e.At, Event{At: e.At, Source: SourceRecord, What: "damaged",
				Text: fmt.Sprintf("Revision %d of its record is damaged, and is not acted on: %s.", e.Revision, quote(e.Err.Error()))})
		case e.Record == nil && e.Revision > 0:
			t.add(e.At, Event{At: e.At, Source: SourceRecord, What: "deleted", Text: fmt.Sprintf("Its record was deleted by hand, as revision %d.", e.Revision)})
		case e.Record != nil && i > 0 && all[i-1].Record != nil:
			was, is := all[i-1].Record, e.Record
			if is.Offset > was.Offset && is.State == was.State && lastStep(is).Equal(lastStep(was)) {
				t.add(t.after(e.At), Event{At: e.At, Source: SourceRecord, Actor: is.Owner, Token: is.Token, Attempt: is.Attempt, What: "progress",
					Text: fmt.Sprintf("%s saved progress at offset %d.", word(is.Owner), is.Offset)})
			}
		}
	}
}

func lastStep(r *kvstate.Record) time.Time {
	if len(r.Trail) == 0 {
		return time.Time{}
	}
	return r.Trail[len(r.Trail)-1].At
}

// after is at, or the place of the last step if that is later.
func (t *telling) after(at time.Time) time.Time {
	if n := len(t.trail); n > 0 && t.trail[n-1].order.After(at) {
		return t.trail[n-1].order
	}
	return at
}

func (t *telling) tellFollowUps() {
	r := t.record()
	if r == nil || r.State != kvstate.Completed || len(r.FollowUps) == 0 {
		return
	}
	const most = 10
	names := make([]string, 0, most)
	for i, c := range r.FollowUps {
		if i == most {
			names = append(names, fmt.Sprintf("%d more", len(r.FollowUps)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s (%s)", quote(c.ID), word(c.Kind)))
	}
	t.add(t.after(r.StoredAt), Event{At: lastStep(r), Source: SourceRecord, Actor: r.Owner, Token: r.Token, What: "follow_ups",
		Text: fmt.Sprintf("Its receipt bore %s: %s.", count(len(r.FollowUps), "follow-up"), strings.Join(names, ", "))})
}

// tellUnknown says what the evidence cannot hold.
func (t *telling) tellUnknown() {
	if len(t.missing) > 0 {
		t.cannot("When %s stored: no longer in the stream, and no note says.", were(t.missing))
	}
	if r := t.record(); r != nil && len(r.Trail) >= kvstate.MaxTrail {
		t.cannot("What its record said before the steps shown: it keeps the last %d.", kvstate.MaxTrail)
	}
	if t.record() == nil && t.Entry.Revision == 0 && len(t.Copies) == 0 && t.Intake == nil {
		t.cannot("What became of it: it has no record and is not in the stream. Its receipt may have expired%s, or both were deleted.", retention(t.Terms.Retention))
	}
	if t.NotesLeft > 0 {
		t.cannot("What %s say: only the newest %d were read.", count(t.NotesLeft, "older note"), len(t.Notes))
	}
	if !t.Scanned {
		t.cannot("Whether further copies were filed that no note tells of: --scan looks through the whole bucket.")
	}
}

func retention(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf(" (they are kept for %v)", d)
}
