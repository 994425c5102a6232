package desk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// batch is one bulk act. What goes the usual way is pipelined; whatever turns
// out otherwise goes on as a single act, on a goroutine of its own, in the same
// place of the window.
type batch struct {
	d      *Desk // of the shard
	pool   *Desk
	shard  int
	act    Act
	bulk   Bulk
	verb   string
	window *window
	ctx    context.Context

	judge func(kvstate.Entry) (*kvstate.Record, error)
	fast  func(*one)
	slow  func(ctx context.Context, d *Desk, e kvstate.Entry, mine bool) (Outcome, error)

	mu     sync.Mutex // guards counts, and the calls of Each
	counts Counts
}

// one is a command that holds a place in the window.
type one struct {
	item Item
	e    kvstate.Entry
	size int
}

func (b *batch) run(ctx context.Context) (Counts, error) {
	if err := b.act.check(); err != nil {
		return Counts{}, err
	}
	b.ctx = ctx
	var err error
	if len(b.bulk.IDs) > 0 {
		err = b.named(ctx)
	} else {
		err = b.selected(ctx)
	}
	b.window.empty()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("desk: %s: %w", b.verb, err)
	}
	return b.counts, err
}

// errWritten ends a scan at what was written since it began.
var errWritten = errors.New("written since")

// selected walks through the bucket. What is written after it began, by this
// very act above all, is not looked at.
func (b *batch) selected(ctx context.Context) error {
	last, err := b.d.records.LastRevision(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	err = b.d.records.Scan(ctx, func(e kvstate.Entry) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.Revision > last:
			return errWritten
		case kvstate.Own(e.Key) || e.Record == nil || !b.bulk.Filter.Match(e.Record, now):
		case e.Record.State == kvstate.Parked:
			b.take(e)
		case b.verb == "requeue":
			b.recover(e)
		}
		return nil
	})
	if errors.Is(err, errWritten) {
		return nil
	}
	return err
}

// take deals with an entry that was selected or named.
func (b *batch) take(e kvstate.Entry) {
	b.match()
	o := b.enter(e)
	switch next, err := b.judge(e); {
	case err != nil || b.bulk.DryRun && next == nil:
		b.leave(o, Outcome{Already: true}, err)
	case b.bulk.DryRun:
		b.would(o)
	default:
		b.fast(o)
	}
}

// recover deals with a record that says requeued: only if its command is not in
// the stream is there something to do.
func (b *batch) recover(e kvstate.Entry) {
	o := b.enter(e)
	go func() {
		ctx, cancel := bounded(b.ctx)
		defer cancel()
		s, err := b.d.sending(ctx, e)
		if err == nil {
			if there, err := b.d.commands.Occupant(ctx, s.env); err == nil && !s.rec.Accounts(there.Seq) && same(there, s.env) {
				if taken, err := b.d.absorbed(ctx, there.Seq); err == nil && !taken {
					b.window.leave(o.size)
					return
				}
			}
			// Whoever has it has written by now.
			if now, err := b.d.records.Read(ctx, e.Key); err == nil && now.Revision != e.Revision {
				b.window.leave(o.size)
				return
			}
		}
		b.match()
		switch {
		case err != nil:
			b.leave(o, Outcome{}, err)
		case b.bulk.DryRun:
			b.would(o)
		default:
			out, err := b.d.send(ctx, s, true, b.d.try(ctx, s))
			b.leave(o, out, err)
		}
	}()
}

// named reads the records of the ids that were given.
func (b *batch) named(ctx context.Context) error {
	const some = 128
	for ids := b.bulk.IDs; len(ids) > 0; ids = ids[min(some, len(ids)):] {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part := ids[:min(some, len(ids))]
		keys := make([]command.Token, 0, len(part))
		for _, id := range part {
			if token, err := dedupe.Token(id); err == nil {
				keys = append(keys, token)
			}
		}
		found := map[command.Token]kvstate.Entry{}
		if len(keys) > 0 {
			entries, err := pipeline.Await(ctx, func(done func([]kvstate.Entry, error)) error { return b.d.records.ReadMany(keys, done) })
			if err != nil {
				return err
			}
			for _, e := range entries {
				found[e.Key] = e
			}
		}
		for _, id := range part {
			token, _ := dedupe.Token(id) // "" finds nothing
			if e := found[token]; e.Record != nil && e.Record.State == kvstate.Parked {
				b.take(e)
			} else {
				b.single(id)
			}
		}
	}
	return nil
}

// single deals with an id whose record is not there or not parked, as far as
// the batch read knew.
func (b *batch) single(id string) {
	b.match()
	o := b.enter(kvstate.Entry{})
	o.item.ID = id
	go func() {
		ctx, cancel := bounded(b.ctx)
		defer cancel()
		at, e, err := b.pool.known(ctx, id)
		if err != nil {
			b.leave(o, Outcome{}, err)
			return
		}
		b.describe(o, e)
		if b.bulk.DryRun {
			if next, err := b.judge(e); err != nil || next == nil {
				b.leave(o, Outcome{Already: true}, err)
			} else {
				b.would(o)
			}
			return
		}
		out, err := b.slow(ctx, at, e, false)
		b.leave(o, out, err)
	}()
}

// goOn ends the fast way of a command whose write did not simply succeed.
func (b *batch) goOn(o *one, next *kvstate.Record, err error) {
	ctx, cancel := bounded(b.ctx)
	defer cancel()
	e, mine := o.e, false
	if !errors.Is(err, kvstate.ErrTooLarge) {
		if e, mine, err = b.d.clarify(ctx, e.Key, next, err); err != nil {
			b.leave(o, Outcome{}, err)
			return
		}
	}
	out, err := b.slow(ctx, b.d, e, mine)
	b.leave(o, out, err)
}

// fastRequeue writes the record, and publishes once that is durable.
func (b *batch) fastRequeue(o *one) {
	next, err := sentBack(b.act, o.e)
	if err != nil {
		b.leave(o, Outcome{}, err)
		return
	}
	s, whole, err := inline(kvstate.Entry{Key: o.e.Key, Record: next})
	if err != nil {
		b.leave(o, Outcome{}, err)
		return
	}
	wrote := func(revision uint64, err error) {
		switch {
		case err != nil:
			go b.goOn(o, next, err)
		case !whole:
			go func() {
				ctx, cancel := bounded(b.ctx)
				defer cancel()
				out, err := b.slow(ctx, b.d, stored(o.e.Key, next, revision), true)
				b.leave(o, out, err)
			}()
		default:
			b.fastPublish(o, s)
		}
	}
	if err := b.d.records.Write(o.e.Key, next, wrote); err != nil {
		go b.goOn(o, next, err)
	}
}

func (b *batch) fastPublish(o *one, s *sending) {
	done := func(ok stream.Accepted, err error) {
		if err == nil {
			b.leave(o, Outcome{Sequence: ok.Sequence}, nil)
			return
		}
		go func() {
			ctx, cancel := bounded(b.ctx)
			defer cancel()
			out, err := b.d.send(ctx, s, true, err)
			b.leave(o, out, err)
		}()
	}
	if err := b.d.commands.Republish(s.env, done); err != nil {
		done(stream.Accepted{}, err)
	}
}

func (b *batch) fastDiscard(o *one) {
	next, err := givenUp(b.act, o.e)
	if err != nil || next == nil {
		b.leave(o, Outcome{Already: next == nil}, err)
		return
	}
	wrote := func(_ uint64, err error) {
		switch {
		case err != nil:
			go b.goOn(o, next, err)
		case beside(o.e.Record):
			go func() {
				ctx, cancel := bounded(b.ctx)
				defer cancel()
				b.d.clear(ctx, o.e.Key)
				b.leave(o, Outcome{}, nil)
			}()
		default:
			b.leave(o, Outcome{}, nil)
		}
	}
	if err := b.d.records.Write(o.e.Key, next, wrote); err != nil {
		go b.goOn(o, next, err)
	}
}

func (b *batch) enter(e kvstate.Entry) *one {
	o := &one{size: len(e.Raw)}
	if e.Record != nil {
		b.describe(o, e)
	}
	b.window.enter(o.size)
	return o
}

func (b *batch) describe(o *one, e kvstate.Entry) {
	o.e = e
	o.item = Item{ID: e.Record.ID, Kind: e.Record.Kind, Reason: e.Record.Reason}
	if kvstate.Aside(e.Key) {
		o.item.Key = b.pool.place(b.shard, e.Key)
	}
}

func (b *batch) match() {
	b.mu.Lock()
	b.counts.Matched++
	b.mu.Unlock()
}

// would tells of a command on which a dry run would act.
func (b *batch) would(o *one) { b.tell(o, func(*Counts) {}) }

// leave books what came of a command, and gives its place up.
func (b *batch) leave(o *one, out Outcome, err error) {
	o.item.Err = err
	b.tell(o, func(c *Counts) {
		switch {
		case errors.Is(err, ErrRefused):
			c.Refused++
		case err != nil:
			c.Failed++
		case out.Already:
			c.Already++
		default:
			c.Done++
		}
	})
}

func (b *batch) tell(o *one, count func(*Counts)) {
	b.mu.Lock()
	count(&b.counts)
	if b.bulk.Each != nil {
		b.bulk.Each(o.item, b.counts)
	}
	b.mu.Unlock()
	b.window.leave(o.size)
}
