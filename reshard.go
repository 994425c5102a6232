package tallyman

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// ErrBusy means that a pool cannot be spread anew as it is: workers run, commands
// wait, or its books are not closed. The error says what to do first.
var ErrBusy = errors.New("the pool is not at rest")

// Resharded is what Reshard did.
type Resharded struct {
	From, To int
	// Moved counts the entries that were carried into another shard: records, and
	// what belongs to them.
	Moved uint64
	// Resumed says that it was under way when Reshard was called.
	Resumed bool
}

// Reshard spreads a pool over another number of shards. It is the operator's act,
// done while nothing runs: stop producers, relays and workers first, once the
// streams are empty, and seal the books. It fails with ErrBusy, and changes nothing,
// while a worker pulls, a stream holds commands, the books are not sealed through the
// last sequence of each shard, or a message that was parked aside lies in a shard that
// is to go.
//
// While it is under way nobody can open the pool: Open fails with ErrSettings.
// If it is cut off, calling it again completes it; calling it with the number
// that there was before turns it back. No record is removed before it is stored
// where it belongs.
//
// With the number that the pool has, it brings records to their place that an
// audit found misplaced. By names who does it, in notes about parked commands.
func Reshard(ctx context.Context, nc *nats.Conn, pool string, shards int, by string) (Resharded, error) {
	return reshard(ctx, nc, pool, shards, by, accordTime, func(point, id string) error { failAt(point, id); return nil })
}

func reshard(ctx context.Context, nc *nats.Conn, pool string, shards int, by string, accord time.Duration, at func(point, id string) error) (Resharded, error) {
	if err := command.ValidateName("pool", pool); err != nil {
		return Resharded{}, fmt.Errorf("tallyman: reshard: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return Resharded{}, fmt.Errorf("tallyman: reshard pool %q: %w", pool, err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		return Resharded{}, fmt.Errorf("tallyman: reshard pool %q: %w", pool, err)
	}
	defer pipe.Close()
	r := &resharding{pool: &Pool{name: pool, nc: nc, pipe: pipe, link: connection{nc, pipe}}, js: js, at: at}
	r.accord.trust, r.accord.judge = accord, r.unchanged
	r.accord.read = func(ctx context.Context) (kvstate.Entry, error) {
		return r.shards[0].bucket.Read(ctx, kvstate.KeySettings)
	}
	if err := r.run(ctx, shards, cmp.Or(by, "reshard")); err != nil {
		return r.done(), fmt.Errorf("tallyman: reshard pool %q: %w", pool, translate(err))
	}
	return r.done(), nil
}

// reshardMark lies in the settings of the first bucket from the first change until
// the last. Whoever opens the pool meanwhile is refused; to write the settings
// without it is the one write that makes the new number of shards valid.
type reshardMark struct {
	From int       `json:"from"`
	To   int       `json:"to"`
	At   time.Time `json:"at"`
	By   string    `json:"by"`
	// Limits of the pool as a whole, which the streams share; -1 for none.
	MaxBytes    int64 `json:"max_bytes"`
	MaxCommands int64 `json:"max_commands"`
}

// underwayError says that a pool cannot be opened just now.
type underwayError struct{ mark reshardMark }

func (e *underwayError) Error() string {
	return fmt.Sprintf("%v: the pool is being spread from %d to %s, by %s since %s; %s",
		ErrSettings, e.mark.From, plural.Count(e.mark.To, "shard"), e.mark.By, e.mark.At.UTC().Format(time.RFC3339), e.mark.remedy())
}

// remedy says how to end what was begun.
func (m reshardMark) remedy() string {
	how := fmt.Sprintf("complete that with: tallyman reshard --shards %d", m.To)
	if m.From != m.To {
		how += fmt.Sprintf(", or turn it back with: tallyman reshard --shards %d", m.From)
	}
	return how
}

func (e *underwayError) Unwrap() error { return ErrSettings }

func isUnderway(err error) bool {
	var under *underwayError
	return errors.As(err, &under)
}

// resharding is one call of Reshard. It belongs to one goroutine, but for moved and
// clashes, and for shards, of which each goroutine of eachShard writes its own.
type resharding struct {
	pool     *Pool
	js       jetstream.JetStream
	settings Settings // as stored
	revision uint64   // of the stored settings
	mark     reshardMark
	resumed  bool
	shards   []*shard // those that exist; nil for those that do not
	moved    atomic.Uint64
	clashes  clashes
	accord   accord                       // that nobody else has gone on meanwhile
	at       func(point, id string) error // where a test may end it
}

func (r *resharding) done() Resharded {
	return Resharded{From: r.mark.From, To: r.mark.To, Moved: r.moved.Load(), Resumed: r.resumed}
}

func (r *resharding) run(ctx context.Context, to int, by string) error {
	if to < 1 || to > MaxShards {
		return fmt.Errorf("%w: shards is %d; give 1 to %d", ErrSettings, to, MaxShards)
	}
	if err := r.begin(ctx, to, by); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{r.create, r.move, r.drop, r.commit} {
		if err := step(ctx); err != nil {
			return r.cutOff(unheardOf(err))
		}
	}
	if to > 1 {
		r.creation(ctx, Topology{}).spread(to)
	}
	return nil
}

// creation makes shards, or looks at them, as Create does.
func (r *resharding) creation(ctx context.Context, topology Topology) *creation {
	return &creation{ctx: ctx, nc: r.pool.nc, js: r.js, pipe: r.pool.pipe, name: r.pool.name, topology: topology}
}

// cutOff adds to an error that the pool stays closed, and what ends that, unless the error
// says it, or that somebody else has gone on.
func (r *resharding) cutOff(err error) error {
	if isOneOf(err, ErrSettings, ErrBusy) {
		return err
	}
	return fmt.Errorf("%w; until it is complete nobody can open the pool: %s", err, r.mark.remedy())
}

// plan reads where the pool stands, and sets the mark. It reports whether that
// is yet to be stored.
func (r *resharding) plan(ctx context.Context, to int, by string) (anew bool, err error) {
	_, e, err := r.pool.openShard(ctx, r.js, 0)
	if err != nil {
		return false, err
	}
	settings, is, err := decodeSettings(e.Raw)
	if is != (place{}) {
		return false, misplaced(place{}, is)
	}
	r.settings, r.revision = settings, e.Revision
	var under *underwayError
	switch {
	case errors.As(err, &under):
		r.mark, r.resumed = under.mark, true
		if to == r.mark.To {
			return false, nil
		}
		if to != r.mark.From {
			return false, err
		}
		r.mark.From, r.mark.To = r.mark.To, r.mark.From // turned back
	case err != nil:
		return false, err
	default:
		r.mark = reshardMark{From: settings.Shards, To: to}
	}
	r.mark.At, r.mark.By = time.Now().UTC(), by
	return true, nil
}

// begin stores the mark: from then on nobody opens the pool.
func (r *resharding) begin(ctx context.Context, to int, by string) error {
	anew, err := r.plan(ctx, to, by)
	if err != nil {
		return err
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	if !r.resumed {
		state, err := r.shards[0].stream.State(ctx)
		if err != nil {
			return err
		}
		r.mark.MaxBytes, r.mark.MaxCommands = whole(state.MaxBytes, r.mark.From), whole(state.MaxMsgs, r.mark.From)
		if err := r.atRest(ctx); err != nil {
			return err
		}
	}
	if err := r.idle(ctx); err != nil {
		return err
	}
	if anew {
		if err := r.put(ctx, &r.mark, r.settings); err != nil {
			return err
		}
	}
	if err := r.at("reshard-marked", r.pool.name); err != nil {
		return err
	}
	// Whoever had opened the pool by then takes on nothing any more once this has passed.
	err = pipeline.Sleep(ctx, r.accord.trust)
	if err == nil {
		err = r.pulls(ctx)
	}
	if err == nil && !r.resumed {
		err = r.drained(ctx) // nor has taken on anything meanwhile
	}
	switch {
	case err == nil:
		return nil
	case r.resumed:
		return r.cutOff(err)
	}
	// Nothing is changed yet, so the mark is taken back, by whatever it was ended.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if left := r.put(undo, nil, r.settings); left != nil {
		return r.cutOff(unheardOf(errors.Join(err, left)))
	}
	return err
}

// put stores settings in the first bucket, with a mark or without, over those
// that were read. What becomes of a write without an answer is read back.
func (r *resharding) put(ctx context.Context, mark *reshardMark, s Settings) error {
	in := s.stored(place{})
	if in.Reshard = mark; mark != nil {
		in.Version = settingsVersion // so that programs that know nothing of the mark stay out as well
	}
	body, err := in.encode()
	if err != nil {
		return err
	}
	records := r.shards[0].bucket
	for {
		err := records.PutWait(ctx, kvstate.KeySettings, body, r.revision)
		if err != nil && !errors.Is(err, kvstate.ErrStale) && !errors.Is(err, kvstate.ErrIndeterminate) {
			return err
		}
		e, readErr := records.Read(ctx, kvstate.KeySettings)
		switch {
		case readErr != nil:
			return readErr
		case bytes.Equal(e.Raw, body):
			r.revision = e.Revision
			return nil
		case e.Revision != r.revision:
			return fmt.Errorf("%w: somebody else has changed the settings just now; look at them with tallyman status, and try again", ErrSettings)
		case ctx.Err() != nil:
			return err
		}
	}
}

// open opens the shards that exist, of the old layout and of the new.
func (r *resharding) open(ctx context.Context) error {
	r.shards = make([]*shard, max(r.mark.From, r.mark.To))
	c := r.creation(ctx, Topology{})
	needed := r.mark.From // those before exist, or something is wrong
	if r.resumed {
		needed = min(r.mark.From, r.mark.To)
	}
	return eachShard(0, len(r.shards), func(i int) error {
		if i > 0 {
			if err := c.vacant(i); err != nil {
				return err
			}
		}
		s, err := r.shard(ctx, i)
		if err != nil && (i < needed || !isOneOf(err, kvstate.ErrNoBucket, stream.ErrNoStream)) {
			return err
		}
		r.shards[i] = s // without a stream if it was cut off between the two
		return nil
	})
}

// shard opens one shard. Without its stream it comes with the error that says so;
// without its bucket there is none.
func (r *resharding) shard(ctx context.Context, i int) (s *shard, err error) {
	s = &shard{index: i, name: shardName(r.pool.name, i)}
	if s.bucket, err = kvstate.Open(ctx, r.pool.nc, r.js, r.pool.pipe, kvstate.Config{Pool: s.name, Retention: r.settings.Retention}); err != nil {
		return nil, fmt.Errorf("bucket %q: %w", s.name, err)
	}
	s.stream, err = stream.Open(ctx, r.pool.nc, r.js, r.pool.pipe, s.name)
	return s, err
}

// unchanged judges the stored settings: another run may have completed this one, or turned it
// back, while it was frozen. What it has planned is not to be done any more then.
func (r *resharding) unchanged(e kvstate.Entry) error {
	if e.Revision != r.revision {
		return fmt.Errorf("%w: somebody else has gone on with this meanwhile; look at where the pool stands with tallyman status, and run it again if need be", ErrSettings)
	}
	return nil
}

// commit makes the new number of shards valid, unless a worker pulls that was not
// stopped and knows but the old one.
func (r *resharding) commit(ctx context.Context) error {
	if err := r.pulls(ctx); err != nil {
		return err
	}
	if err := r.at("reshard-commit", r.pool.name); err != nil {
		return err
	}
	after := r.settings
	after.Shards = r.mark.To
	return r.put(ctx, nil, after)
}
