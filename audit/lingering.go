package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// An ack is two writes of the server: the consumer notes it, and the message
// leaves the work queue. A server that dies between the two, or whose disk keeps
// one and loses the other, has a message that no worker will get any more, and
// does not look for such by itself unless it is part of a cluster. The same
// goes for a stream that is swept, if nothing accounts for what is acked there,
// and for what a queue has passed over or given up, before somebody put its consumer right,
// or what the stream stored under another subject, before somebody put that right.

// lingering is a command in the stream that its queue does not deliver any more, and
// that ought not to be there any more, or to be delivered.
type lingering struct {
	seq     uint64
	queue   string
	kind    string
	token   command.Token
	settled bool   // its outcome is stored, or it is parked
	foreign string // its subject, where that is none of the pool's commands
}

// survey notes up to where each queue delivers nothing any more. It comes before the
// walk, so that the removal that belongs to an ack had time.
func (b *books) survey(ctx context.Context) error {
	queues, err := b.commands.Queues(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	b.over = make(map[string]uint64, len(queues))
	for _, q := range queues {
		b.over[q.Name] = q.Over
	}
	return nil
}

// passed notes a command in the stream that its queue does not deliver any more.
func (b *books) passed(seq uint64, subject string) {
	queue, _, _ := b.commands.Names(subject)
	if queue != "" && seq > b.over[queue] {
		return
	}
	if queue == "" || !b.commands.Sweeps() {
		b.suspect(seq)
	} else {
		b.acked.add(seq)
	}
}

func (b *books) suspect(seq uint64) {
	if len(b.lying) < maxSuspects {
		b.lying = append(b.lying, seq)
	}
}

// linger finds out which of what is acked does not leave the stream.
func (b *books) linger(ctx context.Context) error {
	for seq := b.acked.base + 1; seq <= b.acked.last; seq++ {
		if b.acked.has(seq) && !b.settled.has(seq) {
			b.suspect(seq)
		}
	}
	for look := 1; look <= looks && len(b.lying) > 0; look++ {
		if look > 1 { // most are on their way out
			if err := again(ctx); err != nil {
				return err
			}
		}
		there, err := b.each(ctx, b.there)
		if err != nil {
			return err
		}
		b.lying = b.lying[:0]
		for _, l := range there {
			b.lying = append(b.lying, l.seq)
		}
	}
	found, err := b.each(ctx, b.lingers)
	if err != nil {
		return err
	}
	for _, l := range found {
		list(&b.report.Lingering, &b.report.LingeringCount, l.seq)
		if len(b.lingering) < ListLimit {
			b.lingering = append(b.lingering, *l)
		}
	}
	return nil
}

// each asks the leaders for every suspect, and returns those that are suspect still.
func (b *books) each(ctx context.Context, ask func(ctx context.Context, seq uint64) (*lingering, error)) ([]*lingering, error) {
	all, errs := make([]*lingering, len(b.lying)), make([]error, len(b.lying))
	var asking sync.WaitGroup
	turns := make(chan struct{}, compareAtOnce)
	for i, seq := range b.lying {
		turns <- struct{}{}
		asking.Go(func() {
			all[i], errs[i] = ask(ctx, seq)
			<-turns
		})
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("audit: look for what lingers in the stream: %w", err)
	}
	return slices.DeleteFunc(all, func(l *lingering) bool { return l == nil }), nil
}

// there returns what lies at seq; nil if that has left the stream.
func (b *books) there(ctx context.Context, seq uint64) (*lingering, error) {
	s, err := b.commands.Get(ctx, seq)
	if errors.Is(err, stream.ErrNotFound) {
		return nil, nil
	}
	l := &lingering{seq: seq, queue: s.Queue, kind: s.Kind, token: s.Token}
	if l.queue == "" {
		l.foreign = s.Subject
	}
	return l, err
}

// lingers returns what lies at seq with what the bucket says of it; nil if there
// is nothing the matter with that.
func (b *books) lingers(ctx context.Context, seq uint64) (*lingering, error) {
	l, err := b.there(ctx, seq)
	if l == nil || err != nil || l.foreign != "" {
		return l, err
	}
	fate, err := b.records.FateOf(ctx, kvstate.Lying{Seq: seq, Token: l.token})
	if l.settled = fate.Accounted; l.settled && b.commands.Sweeps() {
		return nil, err
	}
	return l, err
}

// lingeringFinding is the finding about one of them.
func (b *books) lingeringFinding(l lingering) Finding {
	f := Finding{What: FindingLingering, Seq: l.seq}
	if l.foreign != "" {
		f.Subject = l.foreign
		f.Cause = "under a subject that is none of the pool's commands, which no queue delivers: the stream had a subject transform or other subjects for a while"
		f.Remedy = fmt.Sprintf("look at it with: nats stream get %s %d; if it is a command, submit it again; then take it out with: nats stream rmm %[1]s %[2]d, and write it off with: nats kv put %s _absorbed/%[2]d WHY", b.commands.Name(), l.seq, b.records.Bucket())
		return f
	}
	anew := fmt.Sprintf("stop the workers, have queue %s delivered from the beginning with: nats consumer rm %s %[1]s, then tallyman init --queue %[1]s, and start the workers", l.queue, b.commands.Name())
	if l.settled {
		// Nothing of the command itself is told: there may be thousands, which are told as one.
		f.Cause = fmt.Sprintf("acked by queue %s and accounted for, and still in the stream, where nobody gets it any more: the server died before it had taken it out, or an older copy of the stream was put back", l.queue)
		f.Remedy = fmt.Sprintf("take it out with: nats stream rmm %s SEQUENCE; or, of many, %s, which absorb all of them", b.commands.Name(), anew)
		return f
	}
	f.ID, f.Subject = idOf(l.token), b.subject(l.queue, l.kind, l.token)
	f.Cause = fmt.Sprintf("in the stream without an outcome, and over for queue %s, so that no worker gets it any more: likely an older copy of stream or bucket was put back, it was acked by hand, its consumer had a max deliver or another filter for a while, or it had its outcome and that has expired", l.queue)
	f.Remedy = fmt.Sprintf("%s: it runs then, and what is settled is absorbed; or, if you know that it had its outcome, nats stream rmm %s %d", anew, b.commands.Name(), l.seq)
	return f
}

// again waits for what lags.
func again(ctx context.Context) error {
	select {
	case <-time.After(lookAgain):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("audit: %w", context.Cause(ctx))
	}
}
