package tallyman

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

const (
	// maxReading is how many batches of record reads a producer has under way,
	// in all shards together but at least one in each. While they are, further
	// submissions gather for the next one, so batches grow with the load and nobody
	// waits for a timer, nor for a shard that is away.
	maxReading = 4
	// maxReadBatch bounds one batch of reads.
	maxReadBatch = 256
)

// submission is one command on its way in:
//
//	read its record -> there: absorbed or conflict
//	                -> none:  publish -> accepted
//	                                  -> refused as a copy: compare with the first
//
// Reading first keeps a command whose receipt exists, or one that contradicts
// it, out of the stream altogether. Should the record appear in between, the
// stream or the worker absorbs the copy.
//
// A request on its way is waited for by nobody, so the end of ctx ends the first
// try from the side: the caller hears of it at once, and the submission gives
// up its place in the window when the answer has come, or is overdue.
type submission struct {
	p    *Producer
	home *shard
	ctx  context.Context
	env  command.Envelope
	done func(Submission, error)
	told atomic.Bool // done has been called, or is about to be

	// Of the watch over ctx: its own, or that of the call of SubmitMany it belongs to.
	unwatch   func() bool
	many      *many
	unwatched atomic.Bool
}

// many is one call of SubmitMany. It watches over its context for all of its submissions.
type many struct{ _ byte }

// start sends the submission on its way.
func (s *submission) start() {
	if s.many == nil {
		s.unwatch = context.AfterFunc(s.ctx, func() { s.giveUp(context.Cause(s.ctx)) })
	}
	s.p.enqueue(s)
	if s.many != nil && s.ctx.Err() != nil && s.stop() { // it ended before this one was to be found
		s.giveUp(context.Cause(s.ctx))
	}
}

// stop ends the watch over ctx. It reports false if it has ended before.
func (s *submission) stop() bool {
	if s.many == nil {
		return s.unwatch()
	}
	return s.unwatched.CompareAndSwap(false, true)
}

// giveUpMany gives up what is under way of a call of SubmitMany whose context has ended.
func (p *Producer) giveUpMany(m *many, why error) {
	p.mu.Lock()
	var left []*submission
	for s := range p.flying {
		if s.many == m {
			left = append(left, s)
		}
	}
	p.mu.Unlock()
	for _, s := range left {
		if s.stop() {
			s.giveUp(why)
		}
	}
}

// giveUp tells the caller, if nobody has yet, that the outcome is not known.
func (s *submission) giveUp(why error) {
	if s.told.CompareAndSwap(false, true) {
		s.done(Submission{ID: s.env.ID}, errUnconfirmed(s.env.ID, why))
	}
}

func (s *submission) finish(sequence uint64, absorbed bool, state State) {
	s.tell(Submission{ID: s.env.ID, Sequence: sequence, Absorbed: absorbed, State: state}, nil)
}

func (s *submission) fail(err error) { s.tell(Submission{ID: s.env.ID}, err) }

func (s *submission) tell(sub Submission, err error) {
	s.p.leave(s)
	s.stop()
	if s.told.CompareAndSwap(false, true) {
		s.done(sub, err)
	}
}

func (p *Producer) enqueue(s *submission) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		s.fail(errUnconfirmed(s.env.ID, errClosed))
		return
	}
	p.flying[s] = struct{}{}
	lane := &p.lanes[s.home.index]
	lane.waiting = append(lane.waiting, s)
	batch := p.nextLocked(lane)
	p.mu.Unlock()
	p.read(batch)
}

// lane is what goes to one shard.
type lane struct {
	waiting []*submission // for the next batch of record reads
	reading int           // batches of record reads under way
}

// nextLocked takes the next batch to read, nil if there is none or enough are under way.
func (p *Producer) nextLocked(l *lane) []*submission {
	if l.reading >= max(maxReading/len(p.lanes), 1) || len(l.waiting) == 0 {
		return nil
	}
	n := min(len(l.waiting), maxReadBatch)
	batch := l.waiting[:n:n]
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	l.reading++
	return batch
}

// read reads the records of submissions that go to the same shard.
func (p *Producer) read(batch []*submission) {
	if batch == nil {
		return
	}
	home := batch[0].home
	keys := make([]command.Token, len(batch))
	for i, s := range batch {
		keys[i] = s.env.Token
	}
	done := func(entries []kvstate.Entry, err error) {
		p.mu.Lock()
		lane := &p.lanes[home.index]
		lane.reading--
		next := p.nextLocked(lane)
		p.mu.Unlock()
		p.read(next)
		for i, s := range batch {
			switch {
			case err != nil:
				s.retry(err)
			case entries[i].Record != nil:
				s.compare(entries[i].Record)
			case entries[i].Err != nil:
				s.fail(fmt.Errorf("tallyman: submit %q: its record is damaged: %w; see tallyman show", s.env.ID, entries[i].Err))
			default:
				s.publish()
			}
		}
	}
	if err := home.records.ReadMany(keys, done); err != nil {
		done(nil, err)
	}
}

// compare ends a submission whose record exists.
func (s *submission) compare(r *kvstate.Record) {
	if r.Digest != s.env.Digest {
		s.fail(errConflict(s.env, r.Kind, r.Digest))
		return
	}
	var seq uint64
	if n := len(r.Seqs); n > 0 {
		seq = r.Seqs[n-1]
	}
	s.finish(seq, true, r.State)
}

// publish sends the command for the first time.
func (s *submission) publish() {
	if s.told.Load() || s.ctx.Err() != nil {
		s.fail(errUnconfirmed(s.env.ID, context.Cause(s.ctx)))
		return
	}
	err := s.home.commands.Publish(s.env, func(ok stream.Accepted, err error) {
		if err == nil && !ok.Repeated {
			s.finish(ok.Sequence, false, "")
			return
		}
		s.retry(err)
	})
	if err != nil {
		s.retry(err)
	}
}

// retry goes on with a submission that its first try did not settle, on a
// goroutine of its own. That is rare, or slow in any case. There every wait
// heeds ctx, and knows what was tried last.
func (s *submission) retry(first error) {
	if !s.stop() || !s.p.begin() {
		s.p.leave(s) // the caller has been told, or is being told
		return
	}
	go func() {
		defer s.p.work.Done()
		ctx, cancel := pipeline.Within(s.ctx, s.p.cfg.Confirm)
		defer cancel()
		stop := context.AfterFunc(s.p.life, cancel)
		defer stop()
		s.insist(ctx, first)
	}()
}

// final reports whether trying again cannot help.
func final(err error) bool {
	return isOneOf(err, stream.ErrTooLarge, stream.ErrNoStream, stream.ErrSealed, stream.ErrDenied, kvstate.ErrNoBucket)
}

// insist publishes until the server's answer is clear or ctx ends. What the
// server refuses as a copy is compared with the first one. Last is the outcome
// of the try before, nil if the server took it for a copy.
func (s *submission) insist(ctx context.Context, last error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 20 * time.Millisecond
	pause.MaxInterval = time.Second
	publish := s.home.commands.Publish
	var full error // what the server said when it last refused for want of room
	for {
		if last == nil || errors.Is(last, stream.ErrRepeated) {
			settled, err := s.compareWithFirst(ctx)
			if settled {
				return
			}
			if errors.Is(err, errGone) {
				publish = s.home.commands.Republish // under the same message id it would be swallowed again
			}
			last = err
		}
		refused := errors.Is(last, stream.ErrFull)
		if refused {
			full = last
		}
		if final(last) {
			s.fail(fmt.Errorf("tallyman: submit %q: %w", s.env.ID, translate(last)))
			return
		}
		if err := pipeline.Sleep(ctx, pause.NextBackOff()); err != nil {
			switch {
			case refused:
				s.fail(errFull(s.env.ID, full))
			case full != nil: // nobody knows what became of the try after that
				s.fail(errors.Join(errUnconfirmed(s.env.ID, last), errFull(s.env.ID, full)))
			default:
				s.fail(errUnconfirmed(s.env.ID, last))
			}
			return
		}
		// The record may have appeared meanwhile, by our own earlier try even.
		if e, err := s.home.records.Read(ctx, s.env.Token); err != nil {
			if !refused || ctx.Err() == nil { // else nothing was sent since
				last = err
			}
			continue
		} else if e.Record != nil {
			s.compare(e.Record)
			return
		}
		ok, err := s.publishWait(ctx, publish)
		if err == nil && !ok.Repeated {
			s.finish(ok.Sequence, false, "")
			return
		}
		last = err
	}
}

// compareWithFirst finds the copy that the server already has, in the stream or,
// if it was settled meanwhile, in its record. A command leaves the stream after
// its record is stored, so errGone means that it was taken out by hand.
func (s *submission) compareWithFirst(ctx context.Context) (settled bool, err error) {
	stored, err := s.home.commands.Find(ctx, s.env.Token)
	switch {
	case err == nil && s.p.pool.settings.Removal == RemovalSweep:
		if settled, err = s.compareWithSettled(ctx, stored); settled || err != nil {
			return settled, err
		}
		fallthrough
	case err == nil:
		first, err := dedupe.Recognise(stored.Queue, stored.Kind, stored.Token, stored.Header, stored.Payload)
		if err != nil {
			// It will be parked as malformed; this one is not the same.
			s.fail(errConflict(s.env, stored.Kind, ""))
		} else if first.Digest != s.env.Digest {
			s.fail(errConflict(s.env, first.Kind, first.Digest))
		} else {
			s.finish(stored.Seq, true, "")
		}
		return true, nil
	case !errors.Is(err, stream.ErrNotFound):
		return false, err
	}
	e, err := s.home.records.Read(ctx, s.env.Token)
	if err != nil {
		return false, err
	}
	if e.Record != nil {
		s.compare(e.Record)
		return true, nil
	}
	return false, errGone
}

// compareWithSettled ends the submission if the copy in the stream is one that
// awaits the sweep, so that the record knows more than it does. ErrRepeated
// means that the copy was parked and is about to make room.
func (s *submission) compareWithSettled(ctx context.Context, first stream.Stored) (settled bool, err error) {
	e, err := s.home.records.Read(ctx, s.env.Token)
	if err != nil {
		return false, err
	}
	if e.Record != nil {
		s.compare(e.Record)
		return true, nil
	}
	malformed, err := s.home.records.Read(ctx, kvstate.MalformedKey(first.Seq))
	if err == nil && malformed.Raw != nil {
		err = stream.ErrRepeated
	}
	return false, err
}

// errGone means that the first copy, or its record, was taken away by hand.
var errGone = fmt.Errorf("the server takes it for a copy, within its window of %v, of one that is neither in the stream nor on record", stream.DuplicateWindow)

func (s *submission) publishWait(ctx context.Context, publish func(command.Envelope, func(stream.Accepted, error)) error) (stream.Accepted, error) {
	return pipeline.AwaitWrite(ctx, func(done func(stream.Accepted, error)) error { return publish(s.env, done) })
}
