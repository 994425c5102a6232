package tallyman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// In a pool with RemovalSweep an ack removes nothing. The workers sweep: about
// once a second, one of them has the server drop what is settled from the
// beginning of the stream. What goes is certain twice over: the server has it
// as acked, below the ack floor of its queue, and either a worker has acked it
// on proof, which the ledger knows, or the bucket accounts for its sequence.
// What was acked and nothing accounts for, stays.

// sweepTerms are the numbers of a sweeper; tests set their own.
type sweepTerms struct {
	every time.Duration // between two rounds, each varied by a fifth
	quiet time.Duration // the same, while there is nothing to do

	// A purge delays what is in line to be delivered again, by up to a lease. So it
	// waits for a moment when there is nothing in line, until so many commands are
	// to be swept, or the last time is so long ago.
	most     int
	mostLong time.Duration

	// A command that is not settled holds up those behind it. Those of other
	// queues are swept by queue once there are so many of them, and at any rate so often.
	byQueue      int
	byQueueEvery time.Duration
	// Those of its own queue are removed one by one once there are so many, or
	// before the first receipts expire that account for them.
	single  int
	patient time.Duration

	page  int // commands to look at in one request
	pages int // in one round
}

func newSweepTerms(settings Settings) sweepTerms {
	return sweepTerms{
		every: time.Second, quiet: 15 * time.Second,
		most: 50_000, mostLong: max(time.Minute, 2*settings.Lease),
		byQueue: 8192, byQueueEvery: 10 * time.Second,
		single: 100_000, patient: min(settings.Retention/4, time.Hour),
		page: 512, pages: 64,
	}
}

// sweeper takes settled commands out of one stream. One goroutine runs it; what
// others call are acked and parked. A nil sweeper does nothing.
type sweeper struct {
	commands *stream.Stream
	records  *kvstate.Store
	queues   []string // of this worker
	log      *slog.Logger
	terms    sweepTerms
	// bear submits the follow-ups of a receipt; those that exist are absorbed.
	bear   func(key command.Token, parent *kvstate.Record) error
	ledger ledger

	// What earlier rounds have seen.
	last      uint64    // sequence of the stream
	first     uint64    // sequence in the stream when a round had ended
	skipped   int       // rounds that were left to another worker
	movedAt   time.Time // when first has moved
	names     []string  // of all queues
	namesAt   time.Time
	held      uint64 // sequence that held up the others
	heldSince time.Time
	lastByQ   time.Time
	passed    map[string]uint64 // up to where a queue was swept behind what is held
	cursor    uint64            // where the removal one by one goes on; 0 between two passes
	passAt    time.Time         // when the next pass may begin; zero if that is not decided
	passGone  int               // removed in this one
	passWant  int               // that it was begun for
	told      map[string]bool   // what was reported, so that it is once
	denied    time.Time         // when the server last refused a sweep to this user
	deaf      atomic.Int32      // rounds in which this worker told others and has not heard itself
	ripe      uint64            // floor of a while ago: what was acked below it has been told of
	green     uint64            // a floor that is to be ripe
	greenAt   time.Time

	// Of one round.
	floors  map[string]uint64
	limit   uint64 // the lowest of those that have commands which are not acked
	working int64  // commands of the queues looked at that are not settled
	inLine  bool   // in one of them there may be commands that wait to be delivered again
	crowded bool   // what is settled takes up room that new commands may need
}

// newSweepers returns one for each shard, and none if acks take commands out,
// or there is no server.
func newSweepers(w *Worker) []*sweeper {
	if w.pool.settings.Removal != RemovalSweep || w.pool.shards[0].stream == nil {
		return nil
	}
	all := make([]*sweeper, len(w.pool.shards))
	for i, s := range w.pool.shards {
		all[i] = newSweeper(w, s)
	}
	return all
}

// sweeperOf returns the sweeper of a shard; nil if there is none.
func (w *Worker) sweeperOf(s *shard) *sweeper {
	if w.sweepers == nil {
		return nil
	}
	return w.sweepers[s.index]
}

func newSweeper(w *Worker, at *shard) *sweeper {
	return &sweeper{
		commands: at.stream, records: at.bucket, queues: w.cfg.Queues, log: w.log,
		terms: newSweepTerms(w.pool.settings), passed: map[string]uint64{}, told: map[string]bool{},
		bear: func(key command.Token, parent *kvstate.Record) error {
			if w.life.Err() != nil {
				return ErrDraining
			}
			r := &run{w: w, d: &stream.Delivery{}, shard: at, env: command.Envelope{Command: Command{ID: parent.ID, Kind: parent.Kind, Queue: parent.Queue}, Token: key}}
			return r.bear(parent.FollowUps)
		},
	}
}

// acked notes that this worker has acked a command on proof. One that is parked
// is taken out at once: there are few, and a person who sends it back, or
// whoever submits another under the same subject, should find the place free.
func (s *sweeper) acked(queue string, seq uint64, parked bool) {
	switch {
	case s == nil:
	case parked:
		s.ledger.stir()
		if err := s.commands.RemoveLater(seq); err != nil {
			s.log.Debug("parked command not removed yet; it is swept", "sequence", seq, "error", err)
		}
	default:
		s.ledger.add(queue, seq)
	}
}

// run sweeps until ctx ends, and then once more.
func (s *sweeper) run(ctx context.Context) {
	defer s.end()
	stop, err := s.commands.Hear(func(queue string, created time.Time, runs []stream.Run) {
		s.deaf.Store(0)
		s.ledger.hear(queue, created, runs)
	})
	if err != nil {
		s.report(err)
	} else {
		defer stop()
	}
	if state, err := s.commands.State(ctx); err == nil {
		s.ledger.begin(state.Created) // what others tell is of this stream
	}
	for idle := s.terms.every; ; {
		if sleep(ctx, s.terms.every*9/10+rand.N(s.terms.every/5)) != nil {
			return
		}
		if !s.ledger.stirred() {
			if idle += s.terms.every; idle < s.terms.quiet {
				continue
			}
		}
		look, cancel := context.WithTimeout(ctx, settleTime)
		left, err := s.round(look, false)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.report(err)
		}
		if idle = 0; err == nil && left {
			idle = s.terms.quiet - 2*s.terms.every
		}
	}
}

// lastTime bounds the last sweep of a worker that ends.
const lastTime = 2 * time.Second

// end sweeps once more, when this worker has sent its last ack. The server may
// take a moment to see that.
func (s *sweeper) end() {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	for pause := 5 * time.Millisecond; pause < 200*time.Millisecond; pause *= 2 {
		left, err := s.round(ctx, true)
		if err != nil || !left || sleep(ctx, pause) != nil {
			return
		}
	}
}

// round sweeps once, and reports whether settled commands may be left. Last
// says that no other will follow.
func (s *sweeper) round(ctx context.Context, last bool) (left bool, err error) {
	if !s.denied.IsZero() && time.Since(s.denied) < time.Minute {
		return false, nil
	}
	state, err := s.commands.State(ctx)
	if err != nil {
		return true, err
	}
	s.ledger.begin(state.Created)
	if state.LastSeq < s.last { // set back: it hands out sequences anew
		s.ledger.forget()
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
		purged, err := s.commands.Purge(ctx, "", below)
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
func (s *sweeper) see(first uint64) {
	if first != s.first {
		s.first, s.movedAt = first, time.Now()
	}
}

// waits reports whether a better moment for a purge may come.
func (s *sweeper) waits(state stream.State, last bool) bool {
	if s.movedAt.IsZero() {
		s.movedAt = time.Now()
	}
	many := s.crowded || int64(state.Messages)-s.working >= int64(s.terms.most)
	long := time.Since(s.movedAt) >= s.terms.mostLong
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
func (s *sweeper) ripen(top uint64, last bool) uint64 {
	switch now := time.Now(); {
	case last:
		return top
	case s.greenAt.IsZero():
		s.green, s.greenAt = top, now
	case now.Sub(s.greenAt) >= 2*s.terms.every+s.terms.every/4:
		s.ripe, s.green, s.greenAt = s.green, top, now
	}
	return s.ripe
}

// tell shares what this worker has acked.
func (s *sweeper) tell(created time.Time) {
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
		if err := s.commands.Tell(queue, created, runs); err != nil {
			s.log.Debug("acked commands not told", "error", err)
		}
	}
}

// report logs why a round failed: what the server denies once, and what passes quietly.
func (s *sweeper) report(err error) {
	if !errors.Is(err, stream.ErrDenied) {
		s.log.Debug("sweep not finished, it is tried again", "error", err)
		return
	}
	s.denied = time.Now()
	s.once("denied", fmt.Sprintf("this worker may not sweep, so the stream grows unless another does: %v; allow it, see Permissions in docs/operations.md", err))
}

// once logs a warning the first time that it is given.
func (s *sweeper) once(what, text string) {
	const most = 1000
	if len(s.told) >= most || s.told[what] {
		return
	}
	s.told[what] = true
	s.log.Warn("sweep", "stream", s.commands.Name(), "trouble", text)
}
