package audit

import (
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// ListLimit is how many sequences or ids a list in a report names at most.
const ListLimit = 1000

// Report is the account of a pool. That of a sharded one sums up the reports of
// its shards, each of which counts its own sequences: LastSeq and SealedThrough
// say how many sequences there are in all, and FirstSeq is one more than were
// sealed before.
type Report struct {
	// Shard is which one a report in Shards is about; nil in all others.
	Shard *int `json:"shard,omitempty"`

	LastSeq uint64 `json:"last_seq"` // of the command stream when the audit began
	// FirstSeq is the first sequence that the audit looked at: the one behind
	// those that earlier audits have sealed.
	FirstSeq uint64 `json:"first_seq"`
	// SealedThrough is the last sequence that is sealed, by this audit too.
	SealedThrough uint64 `json:"sealed_through"`

	Pending   uint64 `json:"pending"` // in the stream, without an outcome
	Completed uint64 `json:"completed"`
	Parked    uint64 `json:"parked"`
	Cancelled uint64 `json:"cancelled"`
	Discarded uint64 `json:"discarded"`
	Absorbed  uint64 `json:"absorbed"` // sequences that repeated a settled command

	// Missing lists the sequences that nothing accounts for.
	Missing      []uint64 `json:"missing"`
	MissingCount uint64   `json:"missing_count"`
	// Doubled lists the sequences that several commands account for.
	Doubled      []Doubled `json:"doubled"`
	DoubledCount uint64    `json:"doubled_count"`
	// Stranded lists the ids of commands that have no outcome and are no longer
	// in the stream. Their sequences are missing.
	Stranded      []string `json:"stranded"`
	StrandedCount uint64   `json:"stranded_count"`
	// Corrupt lists the keys of records that do not decode.
	Corrupt      []string `json:"corrupt"`
	CorruptCount uint64   `json:"corrupt_count"`
	// Misplaced lists the keys of records in a shard that their ids do not belong
	// to, where nobody looks for them.
	Misplaced      []string `json:"misplaced,omitempty"`
	MisplacedCount uint64   `json:"misplaced_count,omitempty"`
	// Lingering lists the sequences that their queue has as acked, or has given up, and that are in
	// the stream all the same: no worker gets them any more. Of more than 16,384
	// in a shard the others are not counted.
	Lingering      []uint64 `json:"lingering,omitempty"`
	LingeringCount uint64   `json:"lingering_count,omitempty"`

	// Beyond is the highest sequence that a record accounts for, or the seal, if
	// the stream never came that far: it was set back, or replaced, after that.
	// 0 otherwise.
	Beyond uint64 `json:"beyond"`
	// Replaced says that the books were sealed for another stream: the one that
	// is there now was made anew, or restored from a backup.
	Replaced bool `json:"replaced"`
	// Findings names everything above that is amiss, each with its likely cause
	// and what to do.
	Findings     []Finding `json:"findings"`
	FindingCount uint64    `json:"finding_count"`
	// MissingIDs lists what Options.Against says was accepted and nothing shows.
	MissingIDs     []MissingID `json:"missing_ids"`
	MissingIDCount uint64      `json:"missing_id_count"`
	// Compared is how many entries of Options.Against were looked up.
	Compared uint64 `json:"compared"`

	Balanced bool `json:"balanced"`

	// Shards are the reports of the shards, in their order, of a pool that has
	// more than one.
	Shards []Report `json:"shards,omitempty"`
}

// MissingID is an accepted command of which neither stream nor bucket know.
type MissingID struct {
	Shard    *int   `json:"shard,omitempty"` // that it belongs to; nil in a pool that is not sharded
	ID       string `json:"id"`
	Sequence uint64 `json:"sequence,omitempty"` // as it was told at the time; 0 if the list does not say
	Cause    string `json:"cause"`              // the likely one, for people
}

// Doubled is a sequence that more than one command accounts for.
type Doubled struct {
	Shard *int     `json:"shard,omitempty"` // nil in a pool that is not sharded
	Seq   uint64   `json:"seq"`
	IDs   []string `json:"ids"`
}

// proved reports whether nothing is amiss but the place of records, which account
// for their sequences wherever their ids belong, and what lingers, behind which
// no seal advances.
func (r Report) proved() bool {
	return r.MissingCount+r.DoubledCount+r.StrandedCount+r.CorruptCount+r.MissingIDCount+r.Beyond == 0 && !r.Replaced
}

// Closed reports whether every sequence of the stream has its outcome or is
// parked, and is sealed, so that the records need not account for any. That of
// a sharded pool is closed if all of its shards are.
func (r Report) Closed() bool {
	for _, s := range r.Shards {
		if !s.Closed() {
			return false
		}
	}
	return r.proved() && r.SealedThrough == r.LastSeq
}

// Summary says in a few words what is amiss, or that nothing is.
func (r Report) Summary() string {
	if r.Balanced {
		text := "the books balance: " + every(r.LastSeq, "sequence")
		if r.LastSeq == 1 {
			text += " is accounted for"
		} else {
			text += " are accounted for"
		}
		if n := len(r.Shards); n > 0 {
			text += " in " + plural.Count(n, "shard")
		}
		if r.Compared > 0 {
			text += ", and " + every(r.Compared, "id") + " of the list"
		}
		return text
	}
	return "the books do not balance: " + r.amiss()
}

func every(n uint64, noun string) string {
	if n == 1 {
		return "the only " + noun
	}
	return "all " + plural.Count(n, noun)
}

// amiss says in a few words what is amiss, and in which shard. A list is that of
// the pool as a whole.
func (r Report) amiss() string {
	var parts []string
	for _, s := range r.Shards {
		if text := s.unbalanced(); text != "" {
			parts = append(parts, fmt.Sprintf("shard %d: %s", *s.Shard, text))
		}
	}
	if text := r.unbalanced(); len(r.Shards) == 0 && text != "" {
		parts = append(parts, text)
	}
	if r.MissingIDCount > 0 {
		parts = append(parts, fmt.Sprintf("%d of %s of the list missing", r.MissingIDCount, plural.Count(r.Compared, "id")))
	}
	if len(r.Shards) == 0 {
		return strings.Join(parts, ", ")
	}
	return strings.Join(parts, "; ")
}

// unbalanced is amiss without the list.
func (r Report) unbalanced() string {
	var amiss []string
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{r.MissingCount, "missing"}, {r.DoubledCount, "accounted for twice"},
		{r.StrandedCount, "stranded"}, {r.CorruptCount, "with a damaged record"},
		{r.MisplacedCount, "with the record in another shard"},
		{r.LingeringCount, "in the stream, and delivered by no queue any more"},
	} {
		if c.n > 0 {
			amiss = append(amiss, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if r.Beyond > 0 {
		amiss = append(amiss, fmt.Sprintf("sequence %d is on record and the stream ends before it", r.Beyond))
	}
	if r.Replaced {
		amiss = append(amiss, "the stream is not the one that the books were sealed for")
	}
	return strings.Join(amiss, ", ")
}

// list adds v to one of the report's lists and counts it.
func list[T any](to *[]T, count *uint64, v T) {
	if *count++; len(*to) < ListLimit {
		*to = append(*to, v)
	}
}
