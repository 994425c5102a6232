package stream

import (
	"context"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Streams and consumers are ordinary ones, which any tool can change. What
// workers rely on is looked at before they start. Of the rest, such as replicas,
// limits and placement, an operator may make what he likes.

// alterations are the ways in which something is not as Create makes it.
type alterations []string

func (a *alterations) when(is bool, text string, values ...any) {
	if is {
		*a = append(*a, fmt.Sprintf(text, values...))
	}
}

// Altered lists in what, and why that matters, the stream is not as Create makes it.
func (s *Stream) Altered(ctx context.Context) ([]string, error) {
	str, err := s.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("stream: look at %q: %w", s.name, err)
	}
	return s.altered(str.CachedInfo().Config), nil
}

func (s *Stream) altered(c jetstream.StreamConfig) []string {
	var a alterations
	a.when(!slices.Equal(c.Subjects, []string{s.prefix + allCommands}), "its subjects are %q and not %q, so it takes what is no command, or refuses what is one", c.Subjects, s.prefix+allCommands)
	a.when(c.SubjectTransform != nil, "it has a subject transform, so commands are stored where no queue delivers them")
	a.when(c.Retention == jetstream.InterestPolicy, "its retention is interest and not limits, so commands of a queue without a consumer are dropped")
	a.when(c.NoAck, "it confirms nothing, so nobody learns that a command was accepted")
	a.when(c.MaxAge > 0, "its max age is %v, after which commands are dropped", c.MaxAge)
	a.when(c.Discard != jetstream.DiscardNew, "its discard policy is old, which drops commands when it is full")
	a.when(c.MaxMsgsPerSubject != 1, "its max messages per subject are %d and not 1, so a second copy of a command is not refused", c.MaxMsgsPerSubject)
	a.when(c.MaxMsgsPerSubject > 0 && !c.DiscardNewPerSubject, "its discard new per subject is off, so a second copy of a command takes the place of the first")
	a.when(!c.AllowDirect, "its allow direct is off, so neither audits nor sweeps can read it")
	return a
}

// alteredQueue does the same for a queue's consumer. The lease is for the pool to compare.
func (s *Stream) alteredQueue(c jetstream.ConsumerConfig) []string {
	var a alterations
	a.when(c.DeliverPolicy != jetstream.DeliverAllPolicy, "its deliver policy is %v and not all, so it passes over commands", c.DeliverPolicy)
	a.when(c.AckPolicy != jetstream.AckExplicitPolicy, "its ack policy is %v and not explicit, so commands count as acked that have no outcome", c.AckPolicy)
	a.when(c.FilterSubject != s.filter(c.Durable) || len(c.FilterSubjects) > 0, "its filter is %q and not %q, so it passes over commands",
		slices.DeleteFunc(append([]string{c.FilterSubject}, c.FilterSubjects...), func(f string) bool { return f == "" }), s.filter(c.Durable))
	a.when(c.MaxDeliver > 0, "its max deliver is %d, after which a command is not delivered again", c.MaxDeliver)
	a.when(c.MaxAckPending > 0, "its max ack pending is %d, so commands that wait for a retry keep others back", c.MaxAckPending)
	a.when(len(c.BackOff) > 0, "it has a backoff, %v, which takes the place of the lease", c.BackOff)
	a.when(c.MaxRequestBatch > 0 || c.MaxRequestExpires > 0 || c.MaxRequestMaxBytes > 0, "it has a limit for pulls, so the server refuses those of workers")
	a.when(c.HeadersOnly, "it delivers headers only, so commands come without their payload")
	a.when(c.ReplayPolicy != jetstream.ReplayInstantPolicy, "its replay policy is %v, so commands come as slowly as they were submitted", c.ReplayPolicy)
	a.when(c.InactiveThreshold > 0, "its inactive threshold is %v, so the server deletes it when no worker pulls for that long", c.InactiveThreshold)
	return a
}
