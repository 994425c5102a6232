package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// survey looks at every queue, and returns the highest floor of those that this worker serves.
func (s *Sweeper) survey(ctx context.Context) (top uint64, err error) {
	s.floors, s.limit, s.working, s.inLine = map[string]uint64{}, math.MaxUint64, 0, false
	const fresh = 30 * time.Second
	if s.names == nil || time.Since(s.namesAt) > fresh {
		names, err := s.cfg.Commands.QueueNames(ctx)
		switch {
		case errors.Is(err, stream.ErrDenied):
			s.once("names", fmt.Sprintf("this worker may not ask which queues there are, and its sweeps may delay what other queues are to deliver again: %v; allow it, see Permissions in docs/operations.md", err))
		case err != nil:
			return 0, err
		}
		s.names, s.namesAt = names, time.Now()
	}
	for _, q := range slices.Concat(s.names, s.cfg.Queues) {
		if _, err := s.floor(ctx, q); err != nil {
			return 0, err
		}
	}
	for _, q := range s.cfg.Queues {
		top = max(top, s.floors[q])
	}
	return top, nil
}

// floor is the sequence up to which the commands of a queue are acked; 0 where
// that cannot be relied on.
func (s *Sweeper) floor(ctx context.Context, queue string) (uint64, error) {
	if floor, known := s.floors[queue]; known {
		return floor, nil
	}
	q, err := s.cfg.Commands.Queue(ctx, queue)
	switch {
	case errors.Is(err, stream.ErrNoQueue):
		s.floors[queue] = 0
		return 0, nil
	case err != nil:
		return 0, err
	}
	s.floors[queue] = q.Floor
	if !q.Whole {
		s.floors[queue] = 0
		s.once("consumer "+queue, fmt.Sprintf("the consumer of queue %q does not deliver every command of it, so nothing of the queue is swept; delete it and run: tallyman init --queue %s", queue, queue))
	}
	if q.Pending > 0 || q.Outstanding > 0 {
		s.limit = min(s.limit, s.floors[queue])
	}
	s.working += int64(q.Pending) + int64(q.Outstanding)
	s.inLine = s.inLine || q.InLine
	return s.floors[queue], nil
}

// proven returns the sequence below which every command, of one queue or of
// all, is acked and accounted for, beginning at from, and the first that is
// not, if it met one. Behind top it relies on the ledger alone.
func (s *Sweeper) proven(ctx context.Context, queue string, from, top uint64) (below uint64, held *stream.Lying, err error) {
	below = from
	for range s.Pace.Pages {
		if queue == "" {
			below = s.ledger.through(below, s.limit, s.floors)
		}
		if below > top {
			return below, nil, nil
		}
		page, more, err := s.cfg.Commands.Page(ctx, queue, below, s.Pace.Page)
		if err != nil {
			return from, nil, err
		}
		n, err := s.judge(ctx, page)
		if err != nil {
			return from, nil, err
		}
		if n > 0 {
			below = page[n-1].Seq + 1
		}
		if n < len(page) {
			return below, &page[n], nil
		}
		if !more {
			return below, nil, nil
		}
	}
	return below, nil, nil
}

// judge returns how many commands at the beginning of a page are acked and
// accounted for.
func (s *Sweeper) judge(ctx context.Context, page []stream.Lying) (int, error) {
	var doubtful []kvstate.Lying
	var at []int
	n := 0
	for ; n < len(page); n++ {
		l := page[n]
		floor, err := s.floor(ctx, l.Queue)
		if err != nil {
			return 0, err
		}
		if l.Seq > floor {
			break
		}
		if !s.ledger.has(l.Queue, l.Seq) {
			doubtful, at = append(doubtful, kvstate.Lying{Seq: l.Seq, Token: l.Token}), append(at, n)
		}
	}
	fates, err := s.cfg.Records.Fates(ctx, doubtful)
	if err != nil {
		return 0, err
	}
	for i, f := range fates {
		l := page[at[i]]
		if !f.Accounted { // by a replica, which may be behind
			if f, err = s.cfg.Records.FateOf(ctx, doubtful[i]); err != nil {
				return 0, err
			}
		}
		if !f.Accounted {
			s.unaccounted(l, page, at[i:], fates[i:])
			return at[i], nil
		}
		if f.Receipt != nil { // acked by whom is not known, so neither is that they are born
			if err := s.cfg.Bear(l.Token, f.Receipt); err != nil {
				s.cfg.Log.Warn("cannot submit the follow-ups of a swept receipt yet", "id", f.Receipt.ID, "error", err)
				return at[i], nil
			}
		}
	}
	return n, nil
}

// unaccounted says what nothing accounts for: the first is known to be such, and
// those behind it are as far as a replica knows. Either an operator let a consumer pass
// them over, or their receipts have expired, since no worker was there to sweep before:
// nobody but a person can tell.
func (s *Sweeper) unaccounted(first stream.Lying, page []stream.Lying, at []int, fates []kvstate.Fate) {
	last, n := first, 0
	for i, f := range fates {
		if l := page[at[i]]; !f.Accounted && l.Queue == first.Queue {
			last, n = l, n+1
		}
	}
	what := fmt.Sprintf("sequence %d of queue %q (key %s) lies below what its consumer has acked, and nothing accounts for it", first.Seq, first.Queue, first.Token)
	if n > 1 {
		what = fmt.Sprintf("%d commands of queue %q, sequences %d (key %s) to %d, lie below what its consumer has acked, and nothing accounts for them", n, first.Queue, first.Seq, first.Token, last.Seq)
	}
	s.once(fmt.Sprintf("sequence %d", first.Seq), fmt.Sprintf(
		"%s: what was passed over stays in the stream, and no worker gets it; to have it delivered again delete the consumer and run tallyman init --queue %s; if all of it had its outcome, and only the receipts have expired, take it out with: nats stream purge %s --subject '%s' --seq %d",
		what, first.Queue, s.cfg.Commands.Name(), s.cfg.Commands.Subjects(first.Queue), last.Seq+1))
}
