package audit

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Shard is one pair of command stream and bucket of a pool.
type Shard struct {
	Commands *stream.Stream
	Records  *kvstate.Store

	index, of int
}

// RunShards audits a pool, given all of its shards in their order: each by itself,
// one after the other. The pool balances if every shard does. The seal of a
// shard lies in its bucket, and a shard that balances is sealed whatever the
// others do.
func RunShards(ctx context.Context, shards []Shard, opts Options) (Report, error) {
	all := make([]*books, len(shards))
	for i, s := range shards {
		s.index, s.of = i, len(shards)
		b, err := s.examine(ctx)
		if err != nil {
			return Report{}, s.failed(err)
		}
		if i > 0 {
			b.intake = shards[0].Commands
		}
		all[i] = b
	}
	if opts.Against != nil {
		if err := compare(ctx, all, opts.Against); err != nil {
			return Report{}, err
		}
	}
	for i, b := range all {
		if err := b.finish(ctx, opts); err != nil {
			return b.report, Shard{index: i, of: len(all)}.failed(err)
		}
	}
	if len(all) == 1 {
		return all[0].report, nil
	}
	return sum(all), nil
}

func (s Shard) failed(err error) error {
	if s.of <= 1 {
		return err
	}
	return fmt.Errorf("shard %d: %w", s.index, err)
}

// sum is the report of the pool as a whole.
func sum(all []*books) Report {
	r := Report{
		Missing: []uint64{}, Doubled: []Doubled{}, Stranded: []string{}, Corrupt: []string{}, MissingIDs: []MissingID{}, Findings: []Finding{},
		FirstSeq: 1, Balanced: true,
	}
	for i, b := range all {
		s := &b.report
		s.Shard = &i
		for n := range s.Findings {
			s.Findings[n].Shard = &i
		}
		for n := range s.Doubled {
			s.Doubled[n].Shard = &i
		}
		for n := range s.MissingIDs {
			s.MissingIDs[n].Shard = &i
		}
		r.add(s)
		r.Shards = append(r.Shards, *s)
	}
	return r
}

// add adds the report of a shard. Its lists are cut off where all of them
// together would be longer than one may be.
func (r *Report) add(s *Report) {
	r.LastSeq += s.LastSeq
	r.FirstSeq += s.FirstSeq - 1
	r.SealedThrough += s.SealedThrough
	r.Pending += s.Pending
	r.Completed += s.Completed
	r.Parked += s.Parked
	r.Cancelled += s.Cancelled
	r.Discarded += s.Discarded
	r.Absorbed += s.Absorbed
	r.Compared += s.Compared
	r.Beyond = max(r.Beyond, s.Beyond)
	r.Replaced = r.Replaced || s.Replaced
	r.Balanced = r.Balanced && s.Balanced
	join(&r.Missing, &r.MissingCount, s.Missing, s.MissingCount)
	join(&r.Doubled, &r.DoubledCount, s.Doubled, s.DoubledCount)
	join(&r.Stranded, &r.StrandedCount, s.Stranded, s.StrandedCount)
	join(&r.Corrupt, &r.CorruptCount, s.Corrupt, s.CorruptCount)
	join(&r.Misplaced, &r.MisplacedCount, s.Misplaced, s.MisplacedCount)
	join(&r.Lingering, &r.LingeringCount, s.Lingering, s.LingeringCount)
	join(&r.MissingIDs, &r.MissingIDCount, s.MissingIDs, s.MissingIDCount)
	join(&r.Findings, &r.FindingCount, s.Findings, s.FindingCount)
}

func join[T any](to *[]T, count *uint64, more []T, n uint64) {
	*count += n
	*to = append(*to, more[:min(len(more), ListLimit-len(*to))]...)
}

// misplaced is the finding about a record in a shard that its id does not belong to.
func (b *books) misplaced(key command.Token) Finding {
	home := dedupe.Shard(key, b.shards)
	return Finding{
		What: FindingMisplaced, ID: idOf(key),
		Cause: fmt.Sprintf("its record lies in shard %d, bucket %s, and its id belongs to shard %d, where workers and producers look: likely the number of shards was changed by hand, or an older copy of a bucket or of the settings was put back",
			b.shard, b.records.Bucket(), home),
		Remedy: fmt.Sprintf("stop the workers and bring it to its place with: tallyman reshard --shards %d", b.shards),
	}
}
