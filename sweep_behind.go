package tallyman

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// behind deals with what is settled behind the first command that is not, which
// is held or, if that is not known yet, the first from sequence from on. Rest are left in the
// stream; it returns how many are left then.
func (s *sweeper) behind(ctx context.Context, first *stream.Lying, from uint64, rest int64, last bool) (int64, error) {
	if first == nil {
		page, _, err := s.commands.Page(ctx, "", from, 1)
		if err != nil || len(page) == 0 {
			return rest, err
		}
		first = &page[0]
	}
	held, now := *first, time.Now()
	if held.Seq != s.held {
		s.held, s.heldSince, s.cursor = held.Seq, now, 0
		clear(s.passed)
	}
	if _, err := s.floor(ctx, held.Queue); err != nil { // so that its commands are counted
		return rest, err
	}
	if rest <= s.working {
		return rest, nil
	}
	if last || s.crowded || rest-s.working >= int64(s.terms.byQueue) || now.Sub(s.lastByQ) >= s.terms.byQueueEvery {
		s.lastByQ = now
		for _, q := range s.queues {
			if q == held.Queue || s.floors[q] < held.Seq {
				continue
			}
			from, top := max(held.Seq, s.passed[q]), s.floors[q]
			if !last {
				top = min(top, s.ripe)
			}
			below, _, err := s.proven(ctx, q, from, top)
			if err != nil {
				return rest, err
			}
			if below == from {
				continue
			}
			purged, err := s.commands.Purge(ctx, q, below)
			if err != nil {
				return rest, err
			}
			s.passed[q] = below
			rest -= int64(purged)
		}
	}
	if s.cursor == 0 && !s.due(rest-s.working, now) {
		return rest, nil
	}
	if s.cursor == 0 {
		s.passWant = min(int(rest-s.working), s.terms.single)
	}
	removed, err := s.remove(ctx, max(s.cursor, held.Seq+1))
	if s.passGone += removed; s.cursor == 0 && err == nil {
		s.heldSince, s.passAt = now, time.Time{}
		if s.passGone < s.passWant/2 { // they are not settled, but for instance of a queue without a consumer
			s.passAt = now.Add(min(100*s.terms.every, max(s.terms.patient, s.terms.every)))
		}
		s.passGone = 0
	}
	return rest - int64(removed), err
}

// due reports whether it is time to remove one by one. Workers do not begin at
// the same moment, so that one may spare the others the work.
func (s *sweeper) due(settled int64, now time.Time) bool {
	if settled < int64(s.terms.single) && now.Sub(s.heldSince) < s.terms.patient && !s.crowded {
		return false
	}
	if s.passAt.IsZero() {
		most := min(10*s.terms.every, max(s.terms.patient/2, s.terms.every))
		if s.crowded {
			most = 2 * s.terms.every
		}
		s.passAt = now.Add(rand.N(most))
	}
	return !now.Before(s.passAt)
}

// remove takes out commands one by one that nobody needs any more, from
// sequence from on, as far as one round goes.
func (s *sweeper) remove(ctx context.Context, from uint64) (removed int, err error) {
	for range s.terms.pages {
		page, more, err := s.commands.Page(ctx, "", from, s.terms.page)
		if err != nil {
			return removed, err
		}
		lying := make([]kvstate.Lying, len(page))
		for i, l := range page {
			lying[i] = kvstate.Lying{Seq: l.Seq, Token: l.Token}
			from = l.Seq + 1
		}
		fates, err := s.records.Fates(ctx, lying)
		if err != nil {
			return removed, err
		}
		var over []uint64
		for i, f := range fates {
			// Here no floor says that it is acked.
			if f.Over || f.Accounted && s.ledger.has(page[i].Queue, page[i].Seq) {
				over = append(over, page[i].Seq)
			}
		}
		n, err := s.commands.RemoveMany(ctx, over)
		removed += n
		if err != nil {
			return removed, err
		}
		if s.cursor = from; !more {
			s.cursor = 0
			break
		}
	}
	return removed, nil
}
