package audit

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

const (
	// looks is how often something that looks amiss is looked for in all.
	looks = 3
	// lookAgain is the pause between two looks: replicas that lag catch up meanwhile.
	lookAgain = 250 * time.Millisecond
)

// Options of an audit. The zero value is useful.
type Options struct {
	// Seal stores, after an audit that found nothing amiss with sequences, up to where every sequence has its
	// outcome or is parked. Later audits begin behind that, so that receipts may
	// expire. A command that stays in the stream holds it up.
	Seal bool
	// Against is what a producer was told was accepted, in any order: the report
	// then names those ids that are neither in the stream nor on record. Only
	// such a list shows that stream and bucket went back together, as when an
	// older copy of the store is put back. Read once; an error that it yields
	// ends the audit.
	Against iter.Seq2[Accepted, error]
}

// Run audits a pool that is not sharded. An error means that the audit could not
// be made; books that do not balance are no error but a report that says so.
func Run(ctx context.Context, commands *stream.Stream, records *kvstate.Store, opts Options) (Report, error) {
	return RunShards(ctx, []Shard{{Commands: commands, Records: records}}, opts)
}

// examine looks at the books of one shard until they balance, looks times at most.
func (s Shard) examine(ctx context.Context) (*books, error) {
	commands, records := s.Commands, s.Records
	// The seal first: whoever seals meanwhile does so within what the stream
	// holds, so that a seal behind its end means that it was set back.
	seal, err := readSeal(ctx, records)
	if err != nil {
		return nil, err
	}
	state, err := commands.State(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	for look := 1; ; look++ {
		b := newBooks(commands, records, seal.through, state.LastSeq)
		b.seal, b.created, b.lastAt = seal, state.Created, state.LastAt
		b.shard, b.shards = s.index, s.of
		b.report.Replaced = seal.another(state.Created)
		if err := b.read(ctx); err != nil {
			return nil, err
		}
		if b.agree || look == looks {
			return b, nil
		}
		if err := again(ctx); err != nil {
			return nil, err
		}
	}
}

// finish does once what follows the last look, and the comparison with a list.
func (b *books) finish(ctx context.Context, opts Options) error {
	if !b.report.Balanced {
		b.explain(ctx)
	}
	if b.report.proved() && opts.Seal {
		through, err := b.seal.advance(ctx, b.records, b.provedThrough(), b.created)
		if err != nil {
			return err
		}
		b.report.SealedThrough = through
	}
	return nil
}
