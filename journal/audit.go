package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

const (
	// ListLimit is how many findings a list in a report names at most.
	ListLimit = 1000
	// auditBatch is how many records an audit reads in one request.
	auditBatch = 256
)

// AuditOptions of an audit. The zero value is useful.
type AuditOptions struct {
	// Seal stores, after a balanced audit, up to where every command has its
	// outcome or is parked. Later audits ask for the commands behind it alone,
	// so that receipts may expire. Runs are always checked as a whole.
	Seal bool
}

// Report is the account of a journal.
type Report struct {
	LastSeq uint64 `json:"last_seq"` // of the journal's stream when the audit began
	// PublishedThrough is up to where the relays had confirmed every decision.
	PublishedThrough uint64 `json:"published_through"`
	// SealedThrough is up to where an earlier audit has sealed the books.
	SealedThrough uint64 `json:"sealed_through"`

	Runs      uint64 `json:"runs"`
	Decisions uint64 `json:"decisions"`
	// Commands counts those of the decisions that were looked at: published,
	// and not sealed.
	Commands uint64 `json:"commands"`
	// Unpublished lists decisions behind PublishedThrough. Their commands are
	// a relay's to submit, so they are not asked for. No finding by itself.
	Unpublished      []Place `json:"unpublished"`
	UnpublishedCount uint64  `json:"unpublished_count"`
	// Refused lists commands that could never be submitted, and lie on the
	// operator's desk. No finding either: they are accounted for.
	Refused      []Refused `json:"refused"`
	RefusedCount uint64    `json:"refused_count"`

	// Missing lists published commands that are neither in the stream nor on record.
	Missing      []Missing `json:"missing"`
	MissingCount uint64    `json:"missing_count"`
	// Gaps lists where a run's decisions do not follow each other.
	Gaps     []Gap  `json:"gaps"`
	GapCount uint64 `json:"gap_count"`
	// Damaged lists decisions that are not what was written.
	Damaged      []Damaged `json:"damaged"`
	DamagedCount uint64    `json:"damaged_count"`

	Balanced bool `json:"balanced"`
}

// Place is a decision.
type Place struct {
	Run string `json:"run"`
	Seq uint64 `json:"seq"` // in the run
}

// Refused is a command that was parked because it could never be submitted.
type Refused struct {
	Run    string         `json:"run"`
	Seq    uint64         `json:"seq"` // of the decision in the run
	ID     string         `json:"id"`  // of the command
	Key    string         `json:"key"` // of its record
	State  kvstate.State  `json:"state"`
	Reason kvstate.Reason `json:"reason"`
}

// Missing is a command that a published decision names, and that is nowhere.
type Missing struct {
	Run string `json:"run"`
	Seq uint64 `json:"seq"` // of the decision in the run
	ID  string `json:"id"`  // of the command
	// Other says that the id stands for another command, and this one is not parked either.
	Other bool `json:"other,omitempty"`
}

// Gap is a place in a run where another decision was to come.
type Gap struct {
	Run       string `json:"run"`
	Want      uint64 `json:"want"`
	Got       uint64 `json:"got"`
	StreamSeq uint64 `json:"stream_seq"`
}

// Damaged is a stored decision that does not decode.
type Damaged struct {
	Token     string `json:"token"` // of the run, as the subject has it
	StreamSeq uint64 `json:"stream_seq"`
	Error     string `json:"error"`
}

// Summary says in a few words what is amiss, or that nothing is.
func (r Report) Summary() string {
	if r.Balanced {
		return fmt.Sprintf("the journal balances: %s of %s without a gap, and every published command is there", plural.Count(r.Decisions, "decision"), plural.Count(r.Runs, "run"))
	}
	var amiss []string
	for _, c := range []struct {
		n    uint64
		what string
	}{{r.MissingCount, "missing command"}, {r.GapCount, "gap"}, {r.DamagedCount, "damaged decision"}} {
		if c.n > 0 {
			amiss = append(amiss, plural.Count(c.n, c.what))
		}
	}
	return "the journal does not balance: " + strings.Join(amiss, ", ")
}

// Audit proves that the journal kept its word: the decisions of every run
// follow each other without a gap and undamaged, and every command of a
// decision that the relays have confirmed is in the command stream, on record,
// or parked. An error means that the audit could not be made; findings are no
// error but a report that says so. It may run beside everything else.
//
// Receipts expire: see AuditOptions.Seal. Memory: about 100 bytes for each
// run, and a page of the journal.
func Audit(ctx context.Context, j *Journal, opts AuditOptions) (Report, error) {
	// First how far it is published: what comes later is not looked at.
	info, err := j.consumerInfo(ctx)
	if err != nil {
		return Report{}, err
	}
	m, err := j.readMark(ctx)
	if err != nil {
		return Report{}, err
	}
	created, err := j.created(ctx)
	if err != nil {
		return Report{}, err
	}
	a := &account{
		j: j, runs: map[command.Token]uint64{},
		report: Report{
			PublishedThrough: info.AckFloor.Stream, SealedThrough: m.SealedThrough,
			Unpublished: []Place{}, Refused: []Refused{}, Missing: []Missing{}, Gaps: []Gap{}, Damaged: []Damaged{},
		},
	}
	everything := j.prefix + "*"
	switch last, err := j.get(ctx, map[string]any{"last_by_subj": everything}); {
	case err == nil:
		a.report.LastSeq = last.seq
	case !errors.Is(err, errNoEntry):
		return Report{}, fmt.Errorf("journal: audit: %w", err)
	}
	if stream := info.Delivered.Stream; m.SealedThrough > max(stream, a.report.LastSeq) || another(m.SealedOf, created) {
		return Report{}, fmt.Errorf("journal: audit: the books are sealed through sequence %d, and the stream ends at %d: it was replaced; delete the key %s to begin anew", m.SealedThrough, a.report.LastSeq, kvstate.KeyJournal)
	}
	a.closed = a.report.PublishedThrough
	if err := j.walkPatiently(ctx, everything, 1, a.report.LastSeq, func(s stored) error { return a.book(ctx, s) }); err != nil {
		return Report{}, err
	}
	if err := a.check(ctx); err != nil {
		return Report{}, err
	}
	r := &a.report
	r.Runs = uint64(len(a.runs))
	r.Balanced = r.MissingCount+r.GapCount+r.DamagedCount == 0
	if r.Balanced && opts.Seal {
		return *r, j.advanceMark(ctx, func(m *mark) bool {
			if a.closed <= m.SealedThrough {
				return false
			}
			m.SealedThrough, m.SealedOf = a.closed, created
			return true
		})
	}
	return *r, nil
}

// account is one audit under way. It belongs to one goroutine.
type account struct {
	j       *Journal
	runs    map[command.Token]uint64 // last decision met; after a damaged one unknownSeq
	pending []claimed                // commands whose records are still to be read
	closed  uint64                   // up to here nothing more can happen
	report  Report
}

// claimed is a command that a published decision names.
type claimed struct {
	e   *Entry
	n   int // in its decision, from 0
	env command.Envelope
}

const unknownSeq = ^uint64(0)

// book takes one message of the journal in.
func (a *account) book(ctx context.Context, s stored) error {
	r := &a.report
	r.Decisions++
	e, err := s.entry()
	if err != nil {
		list(&r.Damaged, &r.DamagedCount, Damaged{Token: string(s.token), StreamSeq: s.seq, Error: err.Error()})
		a.runs[s.token] = unknownSeq
		return nil //nolint:nilerr // it is a finding
	}
	if last := a.runs[s.token]; last != unknownSeq && e.Seq != last+1 {
		list(&r.Gaps, &r.GapCount, Gap{Run: e.Run, Want: last + 1, Got: e.Seq, StreamSeq: s.seq})
	}
	a.runs[s.token] = e.Seq
	if s.seq > r.PublishedThrough {
		list(&r.Unpublished, &r.UnpublishedCount, Place{Run: e.Run, Seq: e.Seq})
		return nil
	}
	if s.seq <= r.SealedThrough {
		return nil
	}
	for n, c := range e.Commands {
		r.Commands++
		env, err := dedupe.Identify(c)
		if err != nil { // not written by Commit; parked if a relay has met it
			if err := a.refused(ctx, claimed{e: e, n: n}, false); err != nil {
				return err
			}
			continue
		}
		if a.pending = append(a.pending, claimed{e, n, env}); len(a.pending) == auditBatch {
			if err := a.check(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// check reads the records of the pending commands in one request. Only what
// that does not show is asked for one by one, of the leaders.
func (a *account) check(ctx context.Context) error {
	if len(a.pending) == 0 {
		return nil
	}
	keys := make([]command.Token, len(a.pending))
	for i, p := range a.pending {
		keys[i] = p.env.Token
	}
	entries, err := a.j.readMany(ctx, keys)
	if err != nil {
		return fmt.Errorf("journal: audit: %w", err)
	}
	for i, p := range a.pending {
		if rec := entries[i].Record; rec != nil && rec.Digest == p.env.Digest {
			if !rec.State.Terminal() {
				a.open(p.e)
			}
			continue
		}
		if err := a.search(ctx, p); err != nil {
			return err
		}
	}
	a.pending = a.pending[:0]
	return nil
}

// search looks for one command wherever it may be.
func (a *account) search(ctx context.Context, p claimed) error {
	digest, found, err := a.j.whereabouts(ctx, p.env.Token)
	switch {
	case errors.Is(err, errRecord): // it is there, and the audit of the pool names it
		a.open(p.e)
		return nil
	case err != nil:
		return fmt.Errorf("journal: audit of command %q: %w", p.env.ID, err)
	case found && digest == p.env.Digest:
		a.open(p.e)
		return nil
	}
	return a.refused(ctx, p, found)
}

// refused books a command that is not in the pool: it was parked, or it is missing.
func (a *account) refused(ctx context.Context, p claimed, other bool) error {
	key, err := parkedKey(p.e, p.n)
	if err != nil {
		return err
	}
	e, err := a.j.records.Read(ctx, key)
	if err != nil {
		return fmt.Errorf("journal: audit: %w", err)
	}
	if rec := e.Record; rec != nil {
		list(&a.report.Refused, &a.report.RefusedCount, Refused{
			Run: p.e.Run, Seq: p.e.Seq, ID: rec.ID, Key: string(key), State: rec.State, Reason: rec.Reason,
		})
		return nil
	}
	list(&a.report.Missing, &a.report.MissingCount, Missing{Run: p.e.Run, Seq: p.e.Seq, ID: p.e.Commands[p.n].ID, Other: other})
	return nil
}

// open notes that something is still to come of a decision.
func (a *account) open(e *Entry) { a.closed = min(a.closed, e.StreamSeq-1) }

// list adds v to one of the report's lists and counts it.
func list[T any](to *[]T, count *uint64, v T) {
	if *count++; len(*to) < ListLimit {
		*to = append(*to, v)
	}
}
