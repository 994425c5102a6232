package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Config of a Sweeper. All of it is required.
type Config struct {
	Commands *stream.Stream // to be swept
	Records  *kvstate.Store // that account for its sequences
	Queues   []string       // of this worker
	Log      *slog.Logger
	// Lease and Retention of the pool.
	Lease, Retention time.Duration
	// Bear submits the follow-ups of a receipt; those that exist are absorbed.
	Bear func(key command.Token, parent *kvstate.Record) error
}

// Pace is how a Sweeper goes about it.
type Pace struct {
	Every time.Duration // between two rounds, each varied by a fifth
	Quiet time.Duration // the same, while there is nothing to do

	// A purge delays what is in line to be delivered again, by up to a lease. So it
	// waits for a moment when there is nothing in line, until so many commands are
	// to be swept, or the last time is so long ago.
	Most     int
	MostLong time.Duration

	// A command that is not settled holds up those behind it. Those of other
	// queues are swept by queue once there are so many of them, and at any rate so often.
	ByQueue      int
	ByQueueEvery time.Duration
	// Those of its own queue are removed one by one once there are so many, or
	// before the first receipts expire that account for them.
	Single  int
	Patient time.Duration

	Page  int // commands to look at in one request
	Pages int // in one round
}

func paceOf(cfg Config) Pace {
	return Pace{
		Every: time.Second, Quiet: 15 * time.Second,
		Most: 50_000, MostLong: max(time.Minute, 2*cfg.Lease),
		ByQueue: 8192, ByQueueEvery: 10 * time.Second,
		Single: 100_000, Patient: min(cfg.Retention/4, time.Hour),
		Page: 512, Pages: 64,
	}
}

// Sweeper takes settled commands out of one stream. A nil Sweeper does nothing
// when told of an ack.
type Sweeper struct {
	// Pace may be changed until Run is called. New sets what suits the pool.
	Pace Pace

	cfg    Config
	ledger ledger
	deaf   atomic.Int32 // rounds in which this worker told others and has not heard itself

	// What earlier rounds have seen.
	created   time.Time // the stream was
	last      uint64    // sequence of the stream
	first     uint64    // sequence in the stream when a round had ended
	movedAt   time.Time // when first has moved
	skipped   int       // rounds that were left to another worker
	names     []string  // of all queues
	namesAt   time.Time
	ripe      uint64 // floor of a while ago: what was acked below it has been told of
	green     uint64 // a floor that is to be ripe
	greenAt   time.Time
	held      uint64 // sequence that held up the others
	heldSince time.Time
	lastByQ   time.Time
	passed    map[string]uint64 // up to where a queue was swept behind what is held
	pass      pass

	// Of one round.
	floors  map[string]uint64
	limit   uint64 // the lowest of those that have commands which are not acked
	working int64  // commands of the queues looked at that are not settled
	inLine  bool   // in one of them there may be commands that wait to be delivered again
	crowded bool   // what is settled takes up room that new commands may need

	// What the log was told.
	told   map[string]bool // so that it is once
	denied time.Time       // when the server last refused a sweep to this user
}

// New returns a sweeper. Run it once.
func New(cfg Config) *Sweeper {
	return &Sweeper{cfg: cfg, Pace: paceOf(cfg), passed: map[string]uint64{}, told: map[string]bool{}}
}

// Acked notes that this worker has acked a command on proof. One that is parked
// is taken out at once: there are few, and a person who sends it back, or
// whoever submits another under the same subject, should find the place free.
func (s *Sweeper) Acked(queue string, seq uint64, parked bool) {
	switch {
	case s == nil:
	case parked:
		s.ledger.stir()
		if err := s.cfg.Commands.RemoveLater(seq); err != nil {
			s.cfg.Log.Debug("parked command not removed yet; it is swept", "sequence", seq, "error", err)
		}
	default:
		s.ledger.add(queue, seq)
	}
}

// Knows reports whether a sequence of a queue is known to be acked on proof.
func (s *Sweeper) Knows(queue string, seq uint64) bool { return s.ledger.has(queue, seq) }

// Run sweeps until ctx ends, and then once more.
func (s *Sweeper) Run(ctx context.Context) {
	defer s.end()
	stop, err := s.cfg.Commands.Hear(func(queue string, created time.Time, runs []stream.Run) {
		s.deaf.Store(0)
		s.ledger.hear(queue, created, runs)
	})
	if err != nil {
		s.report(err)
	} else {
		defer stop()
	}
	if state, err := s.cfg.Commands.State(ctx); err == nil {
		s.ledger.begin(state.Created) // what others tell is of this stream
	}
	for idle := s.Pace.Every; ; {
		if pipeline.Sleep(ctx, s.Pace.Every*9/10+rand.N(s.Pace.Every/5)) != nil {
			return
		}
		if !s.ledger.stirred() {
			if idle += s.Pace.Every; idle < s.Pace.Quiet {
				continue
			}
		}
		look, cancel := context.WithTimeout(ctx, roundTime)
		left, err := s.round(look, false)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.report(err)
		}
		if idle = 0; err == nil && left {
			idle = s.Pace.Quiet - 2*s.Pace.Every
		}
	}
}

const (
	// roundTime bounds one round.
	roundTime = 10 * time.Second
	// lastTime bounds the last sweep of a worker that ends.
	lastTime = 2 * time.Second
)

// end sweeps once more, when this worker has sent its last ack. The server may
// take a moment to see that.
func (s *Sweeper) end() {
	ctx, cancel := context.WithTimeout(context.Background(), lastTime)
	defer cancel()
	for pause := 5 * time.Millisecond; pause < 200*time.Millisecond; pause *= 2 {
		left, err := s.round(ctx, true)
		if err != nil || !left || pipeline.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// report logs why a round failed: what the server denies once, and what passes quietly.
func (s *Sweeper) report(err error) {
	if !errors.Is(err, stream.ErrDenied) {
		s.cfg.Log.Debug("sweep not finished, it is tried again", "error", err)
		return
	}
	s.denied = time.Now()
	s.once("denied", fmt.Sprintf("this worker may not sweep, so the stream grows unless another does: %v; allow it, see Permissions in docs/operations.md", err))
}

// once logs a warning the first time that it is given.
func (s *Sweeper) once(what, text string) {
	const most = 1000
	if len(s.told) >= most || s.told[what] {
		return
	}
	s.told[what] = true
	s.cfg.Log.Warn("sweep", "stream", s.cfg.Commands.Name(), "trouble", text)
}
