package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// pullPatience is for how long Reshard waits for pulls to end: those of a worker
// that has just stopped stay open for up to 5 s.
const pullPatience = 6 * time.Second

// idle returns an error while a worker pulls from any shard.
func (r *resharding) idle(ctx context.Context) error {
	for until := time.Now().Add(pullPatience); ; {
		err := r.pulls(ctx)
		if !errors.Is(err, ErrBusy) || time.Now().After(until) || pipeline.Sleep(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// pulls returns an error if a worker pulls from any shard at this moment.
func (r *resharding) pulls(ctx context.Context) error {
	for _, s := range r.shards {
		if s == nil || s.stream == nil {
			continue
		}
		queues, err := s.stream.Queues(ctx)
		if err != nil {
			return err
		}
		for _, q := range queues {
			if q.Waiting > 0 {
				return fmt.Errorf("%w: queue %s of shard %d has %s of workers open: stop all workers first", ErrBusy, q.Name, s.index, plural.Count(q.Waiting, "pull"))
			}
		}
	}
	return nil
}

// drained returns an error while a stream holds commands.
func (r *resharding) drained(ctx context.Context) error {
	for i, s := range r.shards[:r.mark.From] {
		state, err := s.stream.State(ctx)
		if err != nil {
			return err
		}
		if state.Messages == 0 {
			continue
		}
		under, err := s.underWay(ctx)
		switch {
		case err != nil:
			return err
		case under:
			return fmt.Errorf("%w: the stream of shard %d holds %s: stop the producers and relays, let the workers settle them, or cancel them, then stop the workers", ErrBusy, i, plural.Count(state.Messages, "command"))
		case s.stream.Sweeps():
			return fmt.Errorf("%w: the stream of shard %d holds %s, and no queue has anything to deliver: let a worker run until they are swept out; those that stay are named by tallyman audit, and those of a queue without a consumer by tallyman status", ErrBusy, i, plural.Count(state.Messages, "command"))
		}
		return fmt.Errorf("%w: the stream of shard %d holds %s, and no queue has anything to deliver, so waiting does not help: tallyman audit names those that were acked and did not leave the stream, tallyman status those of a queue without a consumer, each with what to do", ErrBusy, i, plural.Count(state.Messages, "command"))
	}
	return nil
}

// underWay reports whether a queue has commands to deliver, or to settle.
func (s *shard) underWay(ctx context.Context) (bool, error) {
	queues, err := s.stream.Queues(ctx)
	for _, q := range queues {
		if q.Pending > 0 || q.Outstanding > 0 {
			return true, err
		}
	}
	return false, err
}

// atRest returns an error unless the streams are empty and the books closed.
func (r *resharding) atRest(ctx context.Context) error {
	if err := r.drained(ctx); err != nil {
		return err
	}
	books := make([]audit.Shard, r.mark.From)
	for i, s := range r.shards[:r.mark.From] {
		books[i] = audit.Shard{Commands: s.stream, Records: s.bucket}
	}
	report, err := audit.RunShards(ctx, books, audit.Options{})
	switch {
	case err != nil:
		return err
	case !report.Balanced && report.MisplacedCount < report.FindingCount:
		return fmt.Errorf("%w: %s; see tallyman audit", ErrBusy, report.Summary())
	case !report.Closed():
		return fmt.Errorf("%w: the books are not sealed through the last sequence of each shard; run: tallyman audit --seal", ErrBusy)
	}
	if err := r.clash(ctx, report); err != nil {
		return err
	}
	for _, s := range r.shards[min(r.mark.To, r.mark.From):r.mark.From] {
		if err := s.bucket.Scan(ctx, s.nothingAside); err != nil {
			return err
		}
	}
	return nil
}

// nothingAside returns an error for what only a person can deal with, in a shard
// that is to go: it is filed under that shard's own sequences.
func (s *shard) nothingAside(e kvstate.Entry) error {
	if kvstate.Aside(e.Key) && (e.Record == nil || !e.Record.State.Final()) {
		return fmt.Errorf("%w: %d:%s is parked in shard %d, which is to go: see tallyman show, then tallyman discard", ErrBusy, s.index, e.Key, s.index)
	}
	return nil
}
