package tallyman

import (
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/sweep"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// newSweepers returns one for each shard, and none if acks take commands out,
// or there is no server.
func newSweepers(w *Worker) []*sweep.Sweeper {
	if w.pool.settings.Removal != RemovalSweep || w.pool.shards[0].stream == nil {
		return nil
	}
	all := make([]*sweep.Sweeper, len(w.pool.shards))
	for i, s := range w.pool.shards {
		all[i] = sweep.New(sweep.Config{
			Commands: s.stream, Records: s.bucket, Queues: w.cfg.Queues, Log: w.log,
			Lease: w.pool.settings.Lease, Retention: w.pool.settings.Retention,
			Bear: func(key command.Token, parent *kvstate.Record) error { return w.bearAgain(s, key, parent) },
		})
	}
	return all
}

// sweeperOf returns the sweeper of a shard; nil if there is none.
func (w *Worker) sweeperOf(s *shard) *sweep.Sweeper {
	if w.sweepers == nil {
		return nil
	}
	return w.sweepers[s.index]
}

// bearAgain submits the follow-ups of a receipt whose command was acked by nobody knows whom.
func (w *Worker) bearAgain(at *shard, key command.Token, parent *kvstate.Record) error {
	if w.life.Err() != nil {
		return ErrDraining
	}
	r := &run{w: w, d: &stream.Delivery{}, shard: at, env: command.Envelope{Command: Command{ID: parent.ID, Kind: parent.Kind, Queue: parent.Queue}, Token: key}}
	return r.bear(parent.FollowUps)
}
