package journal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// parcel is one decision on its way into the pool:
//
//	decode -> damaged:              left unacked, tried again seldom; the audit names it
//	       -> submit every command -> all confirmed:         ack
//	                               -> refused for good:      park that command, ack
//	                               -> no room, no answer:    give back, longer each time
//
// The ack says that every command of the decision is in the pool, or parked.
// That stays true whoever says it: an ack that comes late, after another relay
// has taken over, does no harm.
type parcel struct {
	r   *Relay
	ctx context.Context
	m   jetstream.Msg
	at  time.Time // when it arrived
	e   *Entry

	mu     sync.Mutex
	left   int // commands whose outcome is open
	failed []failure
}

// failure is a command that was not submitted, and why.
type failure struct {
	n   int // of the command in its decision, from 0
	err error
}

// open decodes the delivery and submits what is in it.
func (p *parcel) open() {
	meta, err := p.m.Metadata()
	if err == nil {
		p.e, err = decode(p.r.j.tokenIn(p.m.Subject()), meta.Sequence.Stream, p.m.Headers(), p.m.Data())
	}
	if err != nil {
		p.r.damaged.Add(1)
		p.r.log.Error("a decision cannot be read; its commands are not submitted", "subject", p.m.Subject(), "error", err)
		p.giveBack(p.r.cfg.RetryMax)
		p.r.release()
		return
	}
	if len(p.e.Commands) == 0 {
		p.ack()
		p.r.release()
		return
	}
	// One more, so that no outcome ends it before all are under way.
	p.left = len(p.e.Commands) + 1
	for i, c := range p.e.Commands {
		err := p.r.submit(p.ctx, c, func(err error) { p.outcome(i, err) })
		if err != nil {
			p.outcome(i, err)
		}
	}
	p.outcome(-1, nil)
}

// outcome books the outcome of one command; the last one settles the parcel.
func (p *parcel) outcome(n int, err error) {
	p.mu.Lock()
	if err != nil {
		p.failed = append(p.failed, failure{n, err})
	}
	p.left--
	open := p.left
	p.mu.Unlock()
	switch {
	case open > 0:
	case len(p.failed) == 0:
		p.ack()
		p.r.release()
	default: // that takes a while, and this may be the submitter's goroutine
		go func() {
			defer p.r.release()
			p.settle()
		}()
	}
}

// settle finds out what became of the commands that were not confirmed. Not
// the submitter's words decide but what lies in the pool.
func (p *parcel) settle() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), p.r.j.confirm)
	defer cancel()
	var again error
	for _, f := range p.failed {
		c := p.e.Commands[f.n]
		reason, err := p.r.j.refusal(ctx, c, f.err)
		if err == nil && reason != "" {
			err = p.r.park(ctx, p.e, f.n, reason, f.err)
		} else if err == nil {
			continue // it is there after all
		}
		if err != nil {
			again = fmt.Errorf("command %q: %w", c.ID, err)
		}
	}
	if again == nil {
		p.ack()
		return
	}
	p.r.retried.Add(1)
	p.r.log.Warn("a decision is not published yet; trying again", "run", p.e.Run, "decision", p.e.Seq, "error", again)
	p.giveBack(p.pause())
}

// refusal says why a command can never be submitted; "" without an error means
// that it is in the pool. An error means that trying again may help.
func (j *Journal) refusal(ctx context.Context, c command.Command, cause error) (kvstate.Reason, error) {
	env, err := dedupe.Identify(c)
	if err != nil {
		return kvstate.ReasonMalformed, nil //nolint:nilerr // it is the reason
	}
	if err := j.commandsOf(env.Token).Check(env); err != nil {
		return kvstate.ReasonRejected, nil //nolint:nilerr // it is the reason
	}
	digest, found, err := j.whereabouts(ctx, env.Token)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w; %w", cause, err)
	case !found:
		return "", cause
	case digest != env.Digest:
		return kvstate.ReasonConflict, nil
	}
	return "", nil
}

// whereabouts looks for a command in the command stream and on record, and
// returns the digest of what it finds. The order matters: a command leaves the
// stream only once its record is stored.
func (j *Journal) whereabouts(ctx context.Context, token command.Token) (digest command.Digest, found bool, err error) {
	if j.commandsOf(token).Sweeps() { // what is in the stream may have been parked as another command
		if digest, found, err = j.onRecord(ctx, token); found || err != nil {
			return digest, found, err
		}
	}
	in, err := j.commandsOf(token).Find(ctx, token)
	if err == nil {
		env, err := dedupe.Recognise(in.Queue, in.Kind, in.Token, in.Header, in.Payload)
		if err != nil {
			return "", true, nil //nolint:nilerr // it will be parked as malformed, and is not ours
		}
		return env.Digest, true, nil
	}
	if !errors.Is(err, stream.ErrNotFound) {
		return "", false, fmt.Errorf("journal: look for the command: %w", err)
	}
	return j.onRecord(ctx, token)
}

func (j *Journal) onRecord(ctx context.Context, token command.Token) (digest command.Digest, found bool, err error) {
	e, err := j.recordsOf(token).Read(ctx, token)
	switch {
	case err != nil:
		return "", false, fmt.Errorf("journal: look for the record: %w", err)
	case e.Err != nil:
		return "", false, fmt.Errorf("journal: %w: %w", errRecord, e.Err)
	case e.Record != nil:
		return e.Record.Digest, true, nil
	}
	return "", false, nil
}

// errRecord means that the record of a command does not decode. The audit of
// the pool names it, and whoever gets the command next parks it.
var errRecord = errors.New("its record is damaged")

// park puts a command that can never be submitted on the operator's desk, as a
// follow-up would be that cannot be born.
func (r *Relay) park(ctx context.Context, e *Entry, n int, reason kvstate.Reason, cause error) error {
	c := e.Commands[n]
	rec := &kvstate.Record{ID: c.ID, Kind: c.Kind, Queue: c.Queue, Digest: dedupe.Digest(c.Kind, c.Payload)}
	rec, err := rec.Advance(kvstate.Parked, r.owner, string(reason), time.Now())
	if err != nil {
		return err
	}
	rec.Reason, rec.Command = reason, &c
	rec.Error = fmt.Sprintf("decision %d of run %q: %.1000v", e.Seq, e.Run, cause)
	key, err := parkedKey(e, n)
	if err != nil {
		return err
	}
	if _, err := r.j.records.WriteWait(ctx, key, rec); err != nil && !errors.Is(err, kvstate.ErrStale) { // stale: parked before
		return err
	}
	r.refused.Add(1)
	r.log.Error("a command of a decision can never be submitted, and was parked", "run", e.Run, "decision", e.Seq, "id", c.ID, "key", key, "reason", reason, "error", cause)
	return nil
}

// parkedKey is where a command lies that can never be submitted. No id's token
// begins with "_", so it is nobody else's.
func parkedKey(e *Entry, n int) (command.Token, error) {
	token, err := tokenOf(e.Run)
	if err != nil {
		return "", err
	}
	return kvstate.FollowUpConflictKey(command.Token(fmt.Sprintf("_journal/%s/%d", token, e.Seq)), n+1), nil
}

// ack says that the decision is published. If it gets lost, the decision comes
// again and its commands are absorbed.
func (p *parcel) ack() {
	if err := p.m.Ack(); err != nil {
		p.r.log.Debug("an ack was not sent; the decision will come again", "run", p.e.Run, "decision", p.e.Seq, "error", err)
		return
	}
	p.r.published.Add(1)
	p.r.commands.Add(uint64(len(p.e.Commands)))
}

// giveBack returns the delivery for another try after a pause. Once its lease
// may have ended it belongs to somebody else, and a relay says nothing.
func (p *parcel) giveBack(pause time.Duration) {
	if time.Since(p.at) >= p.r.lease {
		return
	}
	var err error
	if pause > 0 {
		err = p.m.NakWithDelay(pause)
	} else {
		err = p.m.Nak()
	}
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		p.r.log.Debug("a decision was not given back; it comes again when its lease has run out", "error", err)
	}
}

// pause grows with the number of deliveries.
func (p *parcel) pause() time.Duration {
	d := p.r.cfg.RetryMin
	meta, err := p.m.Metadata()
	if err != nil {
		return d
	}
	for n := uint64(1); n < meta.NumDelivered && d < p.r.cfg.RetryMax; n++ {
		d *= 2
	}
	return min(d, p.r.cfg.RetryMax)
}
