package tallyman

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// A producer publishes to the shard of the id. Whoever publishes by hand, to
// the subjects of a pool without shards, reaches the first one whatever the id. Such a stray is
// forwarded: submitted like any command, so that conflicts and repeats are judged
// where its record lies, then filed as absorbed in the shard where it lay, then
// acked. A crash in between repeats that, and the submission is absorbed.

const (
	// forwardTime bounds one try to forward.
	forwardTime = 5 * time.Second
	// forwardPause is how long strays are sent back to wait whose shard has
	// just taken none. They must not keep the worker from the other shards.
	forwardPause = 10 * time.Second
)

// forward sees strays through. They count as held meanwhile, which bounds them, but take no slot.
func (w *Worker) forward(strays []*run) {
	ctx, cancel := context.WithTimeout(w.life, min(forwardTime, w.pool.settings.Lease/2))
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for _, r := range strays {
		home := w.pool.of(r.env.Token)
		switch {
		case w.draining.Load():
			r.observe(Event{Type: EventHandedBack})
			r.nakIfHeld(0)
			continue
		case time.Now().UnixNano() < w.shut[home.index].Load():
			r.nakIfHeld(forwardPause)
			continue
		}
		failAt("before-forward", r.env.ID)
		all.Add(1)
		if err := w.pool.shared().SubmitAsync(ctx, r.env.Command, func(_ Submission, err error) {
			defer all.Done()
			r.forwarded(home, err)
		}); err != nil {
			r.forwarded(home, err)
			all.Done()
		}
	}
}

// forwarded accounts for a stray, given what became of its submission. It does not block.
func (r *run) forwarded(home *shard, err error) {
	switch {
	case err == nil:
		failAt("after-forward", r.env.ID)
		r.fileStray(home)
	case isOneOf(err, ErrConflict):
		r.parkAside(kvstate.ConflictKey(r.d.Seq), kvstate.ReasonConflict, err)
	case isOneOf(err, ErrTooLarge, ErrInvalidID, ErrInvalidName):
		r.parkAside(kvstate.MalformedKey(r.d.Seq), kvstate.ReasonMalformed,
			fmt.Errorf("published to stream %s, it belongs into %s and cannot be forwarded: %w", stream.Name(r.shard.name), stream.Name(home.name), err))
	default:
		if r.w.life.Err() == nil {
			r.w.shut[home.index].Store(time.Now().Add(forwardPause).UnixNano())
		}
		r.leave("forward it to stream "+stream.Name(home.name), err)
	}
}

// fileStray files the sequence where the stray lay, then acks.
func (r *run) fileStray(home *shard) {
	key := kvstate.AbsorbedKey(r.d.Seq)
	err := r.shard.records.Put(key, []byte(r.env.ID), true, func(revision uint64, err error) {
		switch {
		case err != nil:
			r.leave("file a forwarded command", err)
		case !r.lease.Held():
			r.drop()
		default:
			r.w.log.Debug("forwarded", "id", r.env.ID, "sequence", r.d.Seq, "from", stream.Name(r.shard.name), "to", stream.Name(home.name))
			r.ack(command.Proof{Revision: revision}, Event{Type: EventForwarded, Key: key})
		}
	})
	if err != nil {
		r.leave("file a forwarded command", err)
	}
}
