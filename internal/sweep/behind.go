package sweep

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// pass is one removal of settled commands one by one, spread over rounds.
type pass struct {
	cursor uint64    // where it goes on; 0 between two passes
	at     time.Time // when the next may begin; zero if that is not decided
	gone   int       // removed in this one
	want   int       // that it was begun for
}

// behind deals with what is settled behind the first command that is not, which
// is held or, if that is not known yet, the first from sequence from on. Rest are left in the
// stream; it returns how many are left then.
func (s *Sweeper) behind(ctx context.Context, first *stream.Lying, from uint64, rest int64, last bool) (int64, error) {
	if first == nil {
		page, _, err := s.cfg.Commands.Page(ctx, "", from, 1)
		if err != nil || len(page) == 0 {
			return rest, err
		}
		first = &page[0]
	}
	held, now := *first, time.Now()
	if held.Seq != s.held {
		s.held, s.heldSince, s.pass.cursor = held.Seq, now, 0
		clear(s.passed)
	}
	if _, err := s.floor(ctx, held.Queue); err != nil { // so that its commands are counted
		return rest, err
	}
	if rest <= s.working {
		return rest, nil
	}
	if last || s.crowded || rest-s.working >= int64(s.Pace.ByQueue) || now.Sub(s.lastByQ) >= s.Pace.ByQueueEvery {
		s.lastByQ = now
		purged, err := s.byQueue(ctx, held, last)
		if rest -= int64(purged); err != nil {
			return rest, err
		}
	}
	removed, err := s.oneByOne(ctx, held, rest-s.working, now)
	return rest - int64(removed), err
}

// byQueue purges what is settled behind held, queue by queue.
func (s *Sweeper) byQueue(ctx context.Context, held stream.Lying, last bool) (purged uint64, err error) {
	for _, q := range s.cfg.Queues {
		if q == held.Queue || s.floors[q] < held.Seq {
			continue
		}
		from, top := max(held.Seq, s.passed[q]), s.floors[q]
		if !last {
			top = min(top, s.ripe)
		}
		below, _, err := s.proven(ctx, q, from, top)
		if err != nil {
			return purged, err
		}
		if below == from {
			continue
		}
		n, err := s.cfg.Commands.Purge(ctx, q, below)
		if err != nil {
			return purged, err
		}
		s.passed[q] = below
		purged += n
	}
	return purged, nil
}

// oneByOne goes on with a pass through what lies behind held, or begins one if it is
// time. So many commands are settled.
func (s *Sweeper) oneByOne(ctx context.Context, held stream.Lying, settled int64, now time.Time) (removed int, err error) {
	if s.pass.cursor == 0 {
		if !s.due(settled, now) {
			return 0, nil
		}
		s.pass.want = min(int(settled), s.Pace.Single)
	}
	removed, err = s.remove(ctx, max(s.pass.cursor, held.Seq+1))
	if s.pass.gone += removed; s.pass.cursor == 0 && err == nil {
		s.heldSince, s.pass.at = now, time.Time{}
		if s.pass.gone < s.pass.want/2 { // they are not settled, but for instance of a queue without a consumer
			s.pass.at = now.Add(min(100*s.Pace.Every, max(s.Pace.Patient, s.Pace.Every)))
		}
		s.pass.gone = 0
	}
	return removed, err
}

// due reports whether it is time to remove one by one. Workers do not begin at
// the same moment, so that one may spare the others the work.
func (s *Sweeper) due(settled int64, now time.Time) bool {
	if settled < int64(s.Pace.Single) && now.Sub(s.heldSince) < s.Pace.Patient && !s.crowded {
		return false
	}
	if s.pass.at.IsZero() {
		most := min(10*s.Pace.Every, max(s.Pace.Patient/2, s.Pace.Every))
		if s.crowded {
			most = 2 * s.Pace.Every
		}
		s.pass.at = now.Add(rand.N(most))
	}
	return !now.Before(s.pass.at)
}

// remove takes out commands one by one that nobody needs any more, from
// sequence from on, as far as one round goes.
func (s *Sweeper) remove(ctx context.Context, from uint64) (removed int, err error) {
	for range s.Pace.Pages {
		page, more, err := s.cfg.Commands.Page(ctx, "", from, s.Pace.Page)
		if err != nil {
			return removed, err
		}
		lying := make([]kvstate.Lying, len(page))
		for i, l := range page {
			lying[i] = kvstate.Lying{Seq: l.Seq, Token: l.Token}
			from = l.Seq + 1
		}
		fates, err := s.cfg.Records.Fates(ctx, lying)
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
		n, err := s.cfg.Commands.RemoveMany(ctx, over)
		removed += n
		if err != nil {
			return removed, err
		}
		if s.pass.cursor = from; !more {
			s.pass.cursor = 0
			break
		}
	}
	return removed, nil
}
