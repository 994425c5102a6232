package audit

import (
	"fmt"
	"strings"
)

// ListLimit is how many sequences or ids a list in a report names at most.
const ListLimit = 1000

// Report is the account of a pool.
type Report struct {
	LastSeq uint64 `json:"last_seq"` // of the command stream when the audit began
	// ClosedThrough is the last sequence that an earlier audit has closed; this
	// one looked at those behind it.
	ClosedThrough uint64 `json:"closed_through"`

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

	Balanced bool `json:"balanced"`
}

// Doubled is a sequence that more than one command accounts for.
type Doubled struct {
	Seq uint64   `json:"seq"`
	IDs []string `json:"ids"`
}

// Summary says in a few words what is amiss, or that nothing is.
func (r Report) Summary() string {
	if r.Balanced {
		return fmt.Sprintf("the books balance: all %d sequences are accounted for", r.LastSeq)
	}
	var amiss []string
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{r.MissingCount, "missing"}, {r.DoubledCount, "accounted for twice"},
		{r.StrandedCount, "stranded"}, {r.CorruptCount, "with a damaged record"},
	} {
		if c.n > 0 {
			amiss = append(amiss, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return "the books do not balance: " + strings.Join(amiss, ", ")
}

// list adds v to one of the report's lists and counts it.
func list[T any](to *[]T, count *uint64, v T) {
	if *count++; len(*to) < ListLimit {
		*to = append(*to, v)
	}
}
