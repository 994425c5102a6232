package kvstate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Altered lists in what, and why that matters, the bucket is not as Create makes
// it: any other tool can change it. Of the rest, such as replicas, limits and
// placement, an operator may make what he likes.
func (s *Store) Altered(ctx context.Context) ([]string, error) {
	str, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Stream, error) { return s.js.Stream(ctx, s.stream) })
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = ErrNoBucket
	}
	if err != nil {
		return nil, fmt.Errorf("kvstate: look at bucket %q: %w", s.Bucket(), pipeline.Away(err))
	}
	return s.altered(str.CachedInfo().Config), nil
}

func (s *Store) altered(c jetstream.StreamConfig) (all []string) {
	when := func(is bool, text string, values ...any) {
		if is {
			all = append(all, fmt.Sprintf(text, values...))
		}
	}
	when(!slices.Equal(c.Subjects, []string{s.prefix + ">"}), "its subjects are %q and not %q, so it refuses records, or takes what is none", c.Subjects, s.prefix+">")
	when(c.SubjectTransform != nil, "it has a subject transform, so records are stored where nobody looks for them")
	when(c.NoAck, "it confirms nothing, so nobody learns that a record was stored")
	when(c.MaxAge > 0, "its max age is %v, after which everything in it is dropped: receipts, what is parked, and the settings", c.MaxAge)
	when(c.MaxMsgsPerSubject == 1, "its history is 1 and not %d, so no revision is left to fall back on when progress is damaged", History)
	when(c.Discard != jetstream.DiscardNew, "its discard policy is old, which drops records when it is full")
	when(c.DiscardNewPerSubject, "its discard new per subject is on, so a record cannot be written more often than its history allows")
	when(c.MaxMsgSize > 0, "its max message size is %d bytes, so a command that is larger can neither end nor be parked", c.MaxMsgSize)
	when(!c.AllowDirect, "its allow direct is off, so heartbeats cannot read records and leases run out")
	when(!c.AllowRollup, "its allow rollup is off, so no receipt can take the place of what lies below it")
	when(!c.AllowMsgTTL, "its allow message TTL is off, so no receipt that is to expire can be written")
	return all
}
