package tallyman

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// moveAtOnce is how many entries are on their way at once.
const moveAtOnce = 64

// create makes the shards of the new layout that are missing, and brings all of them
// up to it: queues, their pauses, and the limits. Their buckets count on from the
// highest revision of all, since revisions are fencing tokens.
func (r *resharding) create(ctx context.Context) error {
	first := r.shards[0]
	state, err := first.stream.State(ctx)
	if err != nil {
		return err
	}
	queues, err := first.stream.Queues(ctx)
	if err != nil {
		return err
	}
	highest, err := r.highest(ctx)
	if err != nil {
		return err
	}
	after := r.settings
	after.Shards = r.mark.To
	like := Topology{Replicas: state.Replicas, MaxBytes: r.mark.MaxBytes, MaxCommands: r.mark.MaxCommands}
	for _, q := range queues {
		like.Queues = append(like.Queues, q.Name)
	}
	c := r.creation(ctx, like)
	return eachShard(0, r.mark.To, func(i int) error {
		name := shardName(r.pool.name, i)
		if err := r.accord.holds(ctx); err != nil {
			return err
		}
		if s := r.shards[i]; s != nil && s.stream == nil {
			if err := r.clear(ctx, s); err != nil {
				return err
			}
		}
		if err := kvstate.Create(ctx, r.js, kvstate.Config{Pool: name, Replicas: state.Replicas, FirstRevision: highest + 1}); err != nil {
			return err
		}
		if err := r.at("reshard-create", name); err != nil {
			return err
		}
		if _, err := c.shard(i, r.mark.To, func(records *kvstate.Store) (Settings, error) {
			if i == 0 { // whose settings hold the mark
				return after, nil
			}
			return after, mark(ctx, records, place{r.pool.name, i}, after, nil)
		}); err != nil {
			return err
		}
		s, err := r.shard(ctx, i)
		if err != nil {
			return err
		}
		for _, q := range queues {
			if q.Paused && i > 0 {
				if err := s.stream.Pause(ctx, q.Name, q.PausedUntil); err != nil && !errors.Is(err, stream.ErrPassed) {
					return err
				}
			}
		}
		if err := s.bucket.RaiseTo(ctx, highest); err != nil {
			return err
		}
		r.shards[i] = s
		return r.at("reshard-created", name)
	})
}

// clear deletes a bucket whose stream is not there: it was just made, or its shard
// was on its way out. The seal in it, and what accounts for sequences, would
// count for the stream that is made now.
func (r *resharding) clear(ctx context.Context, s *shard) error {
	if err := r.emptied(ctx, s); err != nil {
		return err
	}
	if err := r.accord.renew(ctx); err != nil {
		return err
	}
	return kvstate.Delete(ctx, r.js, s.name)
}

// highest is the newest revision of any bucket.
func (r *resharding) highest(ctx context.Context) (uint64, error) {
	var highest uint64
	for _, s := range r.shards {
		if s == nil {
			continue
		}
		last, err := s.bucket.LastRevision(ctx)
		if err != nil {
			return 0, err
		}
		highest = max(highest, last)
	}
	return highest, nil
}

// move carries whatever belongs to a command into the shard of its id.
func (r *resharding) move(ctx context.Context) error {
	for _, s := range r.shards {
		if s == nil {
			continue
		}
		if err := r.empty(ctx, s); err != nil {
			return fmt.Errorf("shard %d: %w", s.index, err)
		}
	}
	return r.clashes.err(r.mark.To)
}

// empty takes out of a bucket what does not belong there any more.
func (r *resharding) empty(ctx context.Context, from *shard) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var under sync.WaitGroup
	turns := make(chan struct{}, moveAtOnce)
	err := from.bucket.ScanMovable(ctx, func(m kvstate.Movable) error {
		token, ok := kvstate.Belongs(m.Key)
		if !ok {
			return nil
		}
		home := r.shards[dedupe.Shard(token, r.mark.To)]
		if home.index == from.index {
			return nil
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		under.Go(func() {
			defer func() { <-turns }()
			if err := r.carry(ctx, m, token, from, home); err != nil {
				stop(err)
			}
		})
		return nil
	})
	under.Wait()
	if cause := context.Cause(ctx); err == nil || cause != nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	return err
}

// carry moves one entry: first it is stored where it belongs, then it is taken
// away here. A crash in between leaves both, and the next run goes on there.
func (r *resharding) carry(ctx context.Context, m kvstate.Movable, token command.Token, from, home *shard) error {
	if err := r.accord.holds(ctx); err != nil {
		return err
	}
	if m.Record != nil && m.Record.State == Parked {
		// For people; the record itself stays as it is, and so does the time of its receipt.
		text := fmt.Sprintf("from shard %d of %d to shard %d of %d", from.index, r.mark.From, home.index, r.mark.To)
		if n := len(m.Record.Seqs); n > 0 {
			text += fmt.Sprintf("; its sequences were %v there", m.Record.Seqs)
		}
		note := &kvstate.Note{At: r.mark.At, What: kvstate.NoteMoved, Worker: r.mark.By, Text: text}
		if err := home.bucket.Note(ctx, token, fmt.Sprintf("moved-%d-%d", r.mark.At.UnixNano(), from.index), note); err != nil {
			return err
		}
	}
	err := home.bucket.Adopt(ctx, m)
	if errors.Is(err, kvstate.ErrStale) {
		r.clashes.add(m.Key, from.name, home.name) // both stay; the others are carried
		return nil
	}
	if err != nil {
		return err
	}
	if err := r.at("reshard-copied", string(m.Key)); err != nil {
		return err
	}
	if err := from.bucket.GiveUp(ctx, m.Key, m.Revision); err != nil {
		return err
	}
	r.moved.Add(1)
	return r.at("reshard-moved", string(m.Key))
}

// drop deletes the shards that are not needed any more, the last one first. Each is
// looked through once more: nothing goes that anybody would look for.
func (r *resharding) drop(ctx context.Context) error {
	for i := len(r.shards) - 1; i >= r.mark.To; i-- {
		s := r.shards[i]
		if s == nil {
			continue
		}
		if err := r.emptied(ctx, s); err != nil {
			return err
		}
		if err := r.at("reshard-drop", s.name); err != nil {
			return err
		}
		if err := r.accord.renew(ctx); err != nil {
			return err
		}
		if err := stream.Delete(ctx, r.js, s.name); err != nil {
			return err
		}
		if err := r.at("reshard-dropping", s.name); err != nil {
			return err
		}
		if err := kvstate.Delete(ctx, r.js, s.name); err != nil {
			return err
		}
		r.shards[i] = nil
		if err := r.at("reshard-dropped", s.name); err != nil {
			return err
		}
	}
	return nil
}

// emptied returns an error if a shard that is to go holds a command, or what belongs to one.
func (r *resharding) emptied(ctx context.Context, s *shard) error {
	if s.stream != nil {
		state, err := s.stream.State(ctx)
		if err != nil {
			return err
		}
		if state.Messages > 0 {
			return fmt.Errorf("%w: the stream of shard %d, which is to go, holds %s: turn back with tallyman reshard --shards %d", ErrBusy, s.index, plural.Count(state.Messages, "command"), r.mark.From)
		}
	}
	return s.bucket.ScanMovable(ctx, func(m kvstate.Movable) error {
		if _, ok := kvstate.Belongs(m.Key); !ok && !kvstate.Aside(m.Key) {
			return nil
		}
		e, err := s.bucket.Read(ctx, m.Key) // a replica that is behind may show what has been moved
		if err != nil || e.Raw == nil {
			return err
		}
		if kvstate.Aside(e.Key) {
			return s.nothingAside(e)
		}
		return fmt.Errorf("%w: %s was written in shard %d meanwhile; stop all workers, and reshard again", ErrBusy, m.Key, s.index)
	})
}
