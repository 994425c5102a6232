package sweep

import (
	"context"
	"time"

	"github.com/tallyman-go/tallyman/stream"
)

// round sweeps once, and reports whether settled commands may be left. Last
// says that no other will follow.
func (s *Sweeper) round(ctx context.Context, last bool) (left bool, err error) {
	if !s.denied.IsZero() && time.Since(s.denied) < time.Minute {
		return false, nil
	}
	state, err := s.cfg.Commands.State(ctx)
	if err != nil {
		return true, err
	}
	s.ledger.begin(state.Created)
	if state.LastSeq < s.last { // set back: it hands out sequences anew
		s.ledger.forget()
	}
	if state.LastSeq < s.last || !state.Created.Equal(s.created) { // nothing that earlier rounds proved holds any more
		s.created, s.held, s.pass, s.ripe, s.greenAt = state.Created, 0, pass{}, 0, time.Time{}
		clear(s.passed)
	}
	s.last = state.LastSeq
	s.tell(state.Created)
	if state.Messages == 0 {
		s.see(state.LastSeq + 1)
		s.ledger.drop(state.LastSeq + 1)
		return false, nil
	}
	if !last && s.first > 0 && state.FirstSeq > s.first && s.skipped < 3 {
		s.skipped++ // another worker sweeps
		s.see(state.FirstSeq)
		return true, nil
	}
	s.skipped = 0
	top, err := s.survey(ctx)
	if err != nil {
		return true, err
	}
	s.crowded = crowded(state, s.working)
	if s.waits(state, last) {
		s.see(state.FirstSeq)
		return int64(state.Messages) > s.working, nil
	}
	below, held, err := s.proven(ctx, "", state.FirstSeq, s.ripen(top, last))
	if err != nil {
		return true, err
	}
	rest := int64(state.Messages)
	if below = min(below, state.LastSeq+1); below > state.FirstSeq {
		purged, err := s.cfg.Commands.Purge(ctx, "", below)
		if err != nil {
			return true, err
		}
		s.ledger.drop(below)
		rest -= int64(purged)
	}
	s.see(max(below, state.FirstSeq))
	if rest > s.working {
		rest, err = s.behind(ctx, held, below, rest, last)
	}
	return rest > s.working, err
}

// see notes where the stream begins.
func (s *Sweeper) see(first uint64) {
	if first != s.first {
		s.first, s.movedAt = first, time.Now()
	}
}

// waits reports whether a better moment for a purge may come.
func (s *Sweeper) waits(state stream.State, last bool) bool {
	if s.movedAt.IsZero() {
		s.movedAt = time.Now()
	}
	many := s.crowded || int64(state.Messages)-s.working >= int64(s.Pace.Most)
	long := time.Since(s.movedAt) >= s.Pace.MostLong
	return s.inLine && (last || !many && !long)
}

// crowded reports whether a bounded stream is three quarters full, of settled
// commands to an eighth or more: they must not keep new ones out for long.
func crowded(state stream.State, working int64) bool {
	full := func(used uint64, limit int64) bool { return limit > 0 && used >= uint64(limit)-uint64(limit)/4 }
	settled := int64(state.Messages) - working
	return (full(state.Messages, state.MaxMsgs) || full(state.Bytes, state.MaxBytes)) && 8*settled >= int64(state.Messages)
}

// ripen returns the floor up to which it is worth looking for what accounts for a
// command: of what was acked just now, another worker may be about to tell.
func (s *Sweeper) ripen(top uint64, last bool) uint64 {
	switch now := time.Now(); {
	case last:
		return top
	case s.greenAt.IsZero():
		s.green, s.greenAt = top, now
	case now.Sub(s.greenAt) >= 2*s.Pace.Every+s.Pace.Every/4:
		s.ripe, s.green, s.greenAt = s.green, top, now
	}
	return s.ripe
}

// tell shares what this worker has acked.
func (s *Sweeper) tell(created time.Time) {
	told := s.ledger.settle()
	if len(told) == 0 {
		return
	}
	// A user that may not publish there is told so by the server each time.
	if n := s.deaf.Add(1); n > 10 && n%60 != 0 {
		s.once("deaf", "workers cannot tell each other what they have acked, and read the records instead; allow them to publish and subscribe, see Permissions in docs/operations.md")
		return
	}
	for queue, runs := range told {
		if err := s.cfg.Commands.Tell(queue, created, runs); err != nil {
			s.cfg.Log.Debug("acked commands not told", "error", err)
		}
	}
}
