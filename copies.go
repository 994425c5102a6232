package tallyman

import (
	"context"
	"errors"
	"strconv"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// absorb files another copy of a command that has its outcome already.
func (r *run) absorb() {
	err := r.shard.records.Put(kvstate.AbsorbedKey(r.d.Seq), []byte(r.env.ID), true, func(revision uint64, err error) {
		if err != nil {
			r.leave("file an absorbed copy", err)
			return
		}
		if r.base.State == kvstate.Parked {
			go r.absorbParked(revision)
			return
		}
		r.absorbed(revision)
	})
	if err != nil {
		r.leave("file an absorbed copy", err)
	}
}

func (r *run) absorbed(revision uint64) {
	r.ack(command.Proof{Revision: revision}, Event{Type: EventAbsorbed, Key: kvstate.AbsorbedKey(r.d.Seq)})
}

// absorbParked acks a copy of a parked command that is on file as absorbed. An
// operator who sends the command back would count on any copy in the stream.
// Each of the two writes before it looks: who sends back later than this look
// finds the copy on file, and puts another one in its place. Who was earlier
// counts on this one; it is left to its lease, to be judged anew.
func (r *run) absorbParked(revision uint64) {
	ctx, cancel := context.WithTimeout(r.w.life, settleTime)
	e, err := r.shard.records.Read(ctx, r.env.Token)
	cancel()
	switch {
	case err != nil:
		r.leave("read the record of a parked command", err)
	case e.Record == nil || !e.Record.State.Terminal():
		r.dropFor(errors.New("it is not parked any more"))
	default:
		r.absorbed(revision)
	}
}

// meetRival decides between two copies of a command that is under way: as long
// as the other is in the stream it carries on, and this one is absorbed.
func (r *run) meetRival() {
	for _, seq := range r.base.Seqs {
		ctx, cancel := context.WithTimeout(r.w.life, settleTime)
		_, err := r.shard.commands.Get(ctx, seq)
		cancel()
		switch {
		case err == nil:
			r.absorb()
			return
		case !errors.Is(err, stream.ErrNotFound):
			r.leave("look for the other copy at sequence "+strconv.FormatUint(seq, 10), err)
			return
		}
	}
	// It may have been settled just now; then the record says so.
	ctx, cancel := context.WithTimeout(r.w.life, settleTime)
	e, err := r.shard.records.Read(ctx, r.env.Token)
	cancel()
	switch {
	case err != nil:
		r.leave("read the record of the other copy", err)
	case e.Record == nil || e.Revision != r.revision:
		r.begin(e)
	default:
		r.w.log.Warn("the first copy was removed without an outcome, going on with this one", "id", r.env.ID, "sequence", r.d.Seq)
		r.attempt = r.base.Attempt + 1
		r.start()
	}
}
