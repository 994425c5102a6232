package tallyman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
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
	cursor    uint64            // where the removal one by one goes on
	told      map[string]bool   // what was reported, so that it is once
	denied    time.Time         // when the server last refused a sweep to this user
	deaf      atomic.Int32      // times that this worker told others and has not heard itself
	ripe      uint64            // floor of a while ago: what was acked below it has been told of
	green     uint64            // a floor that is to be ripe
	greenAt   time.Time

	// Of one round.
	floors  map[string]uint64
	working int64 // commands of the queues looked at that are not settled
	inLine  bool  // in one of them there may be commands that wait to be delivered again
}

// newSweeper returns nil if acks take commands out, or there is no server.
func newSweeper(w *Worker) *sweeper {
	p := w.pool
	if p.settings.Removal != RemovalSweep || p.stream == nil {
		return nil
	}
	return &sweeper{
		commands: p.stream, records: p.bucket, queues: w.cfg.Queues, log: w.log,
		terms: newSweepTerms(p.settings), passed: map[string]uint64{}, told: map[string]bool{},
		bear: func(key command.Token, parent *kvstate.Record) error {
			if w.life.Err() != nil {
				return ErrDraining
			}
			r := &run{w: w, d: &stream.Delivery{}, env: command.Envelope{Command: Command{ID: parent.ID, Kind: parent.Kind, Queue: parent.Queue}, Token: key}}
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

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
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

// survey looks at every queue, and returns the highest floor of those that this worker serves.
func (s *sweeper) survey(ctx context.Context) (top uint64, err error) {
	s.floors, s.working, s.inLine = map[string]uint64{}, 0, false
	const fresh = 30 * time.Second
	if s.names == nil || time.Since(s.namesAt) > fresh {
		names, err := s.commands.QueueNames(ctx)
		switch {
		case errors.Is(err, stream.ErrDenied):
			s.once("names", fmt.Sprintf("this worker may not ask which queues there are, and its sweeps may delay what other queues are to deliver again: %v; allow it, see Permissions in docs/operations.md", err))
		case err != nil:
			return 0, err
		}
		s.names, s.namesAt = append(names, s.queues...), time.Now()
	}
	for _, q := range s.names {
		if _, err := s.floor(ctx, q); err != nil {
			return 0, err
		}
	}
	for _, q := range s.queues {
		top = max(top, s.floors[q])
	}
	return top, nil
}

// waits reports whether a better moment for a purge may come.
func (s *sweeper) waits(state stream.State, last bool) bool {
	if s.movedAt.IsZero() {
		s.movedAt = time.Now()
	}
	many := int64(state.Messages)-s.working >= int64(s.terms.most)
	long := time.Since(s.movedAt) >= s.terms.mostLong
	return s.inLine && (last || !many && !long)
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
	for queue, runs := range s.ledger.settle() {
		// A user that may not publish there is told so by the server each time.
		if s.deaf.Add(1) > 10 {
			s.once("deaf", "workers cannot tell each other what they have acked, and read the records instead; allow them to publish and subscribe, see Permissions in docs/operations.md")
			continue
		}
		if err := s.commands.Tell(queue, created, runs); err != nil {
			s.log.Debug("acked commands not told", "error", err)
		}
	}
}

// floor is the sequence up to which the commands of a queue are acked; 0 where
// that cannot be relied on.
func (s *sweeper) floor(ctx context.Context, queue string) (uint64, error) {
	if floor, known := s.floors[queue]; known {
		return floor, nil
	}
	q, err := s.commands.Queue(ctx, queue)
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
	s.working += int64(q.Pending) + int64(q.Outstanding)
	s.inLine = s.inLine || q.InLine
	return s.floors[queue], nil
}

// proven returns the sequence below which every command, of one queue or of
// all, is acked and accounted for, beginning at from, and the first that is
// not, if it met one. Behind top it relies on the ledger alone.
func (s *sweeper) proven(ctx context.Context, queue string, from, top uint64) (below uint64, held *stream.Lying, err error) {
	below = from
	for range s.terms.pages {
		if queue == "" {
			var failed error
			below = s.ledger.through(below, func(q string) uint64 {
				floor, err := s.floor(ctx, q)
				failed = errors.Join(failed, err)
				return floor
			})
			if failed != nil {
				return from, nil, failed
			}
		}
		if below > top {
			return below, nil, nil
		}
		page, more, err := s.commands.Page(ctx, queue, below, s.terms.page)
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
func (s *sweeper) judge(ctx context.Context, page []stream.Lying) (int, error) {
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
	fates, err := s.records.Fates(ctx, doubtful)
	if err != nil {
		return 0, err
	}
	for i, f := range fates {
		l := page[at[i]]
		if !f.Accounted { // by a replica, which may be behind
			if f, err = s.records.FateOf(ctx, doubtful[i]); err != nil {
				return 0, err
			}
		}
		if !f.Accounted {
			s.once(fmt.Sprintf("sequence %d", l.Seq), fmt.Sprintf(
				"sequence %d of queue %q (key %s) lies below what its consumer has acked, and nothing accounts for it: it stays in the stream, and no worker gets it; delete the consumer and run tallyman init --queue %s to have it delivered again", l.Seq, l.Queue, l.Token, l.Queue))
			return at[i], nil
		}
		if f.Receipt != nil { // acked by whom is not known, so neither is that they are born
			if err := s.bear(l.Token, f.Receipt); err != nil {
				s.log.Warn("cannot submit the follow-ups of a swept receipt yet", "id", f.Receipt.ID, "error", err)
				return at[i], nil
			}
		}
	}
	return n, nil
}

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
	if last || rest-s.working >= int64(s.terms.byQueue) || now.Sub(s.lastByQ) >= s.terms.byQueueEvery {
		s.lastByQ = now
		for _, q := range s.queues {
			if q == held.Queue || s.floors[q] < held.Seq {
				continue
			}
			from := max(held.Seq, s.passed[q])
			below, _, err := s.proven(ctx, q, from, s.floors[q])
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
	if rest-s.working < int64(s.terms.single) && now.Sub(s.heldSince) < s.terms.patient && s.cursor == 0 {
		return rest, nil
	}
	removed, err := s.remove(ctx, max(s.cursor, held.Seq+1))
	return rest - int64(removed), err
}

// remove takes out commands one by one that nobody needs any more, from
// sequence from on, as far as one round goes.
func (s *sweeper) remove(ctx context.Context, from uint64) (removed int, err error) {
	for range s.terms.pages {
		page, more, err := s.commands.Page(ctx, "", from, s.terms.page)
		if err != nil {
			return removed, err
		}
		var over []uint64
		var doubtful []kvstate.Lying
		for _, l := range page {
			if s.ledger.has(l.Queue, l.Seq) {
				over = append(over, l.Seq)
			} else {
				doubtful = append(doubtful, kvstate.Lying{Seq: l.Seq, Token: l.Token})
			}
			from = l.Seq + 1
		}
		fates, err := s.records.Fates(ctx, doubtful)
		if err != nil {
			return removed, err
		}
		for i, f := range fates {
			if f.Over {
				over = append(over, doubtful[i].Seq)
			}
		}
		n, err := s.commands.RemoveMany(ctx, over)
		removed += n
		if err != nil {
			return removed, err
		}
		if s.cursor = from; !more {
			s.cursor, s.heldSince = 0, time.Now()
			break
		}
	}
	return removed, nil
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
	s.log.Warn(strings.TrimSpace(text), "stream", s.commands.Name())
}
