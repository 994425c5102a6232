package kvstate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
)

// scanPull is how many entries one pull of a scan asks for. It bounds the memory of a scan.
const scanPull = 512

// scanIdle is how long visit may take over one pull before the server drops
// the scan's consumer, and how long the consumer stays if the scan was killed.
const scanIdle = 10 * time.Minute

// errInterrupted means that a scan has missed entries.
var errInterrupted = errors.New("the server stopped sending; try again")

// Scan calls visit with the newest entry of every key that was there when it
// began, deleted ones left out, in the order of their revisions. An entry that
// is no record has Err set; keys that begin with "_" are passed on as they
// are, undecoded. Memory stays bounded whatever the size of the bucket. An
// error of visit ends the scan and is returned.
//
// A key that is written during the scan may come a second time, with its newer
// revision.
func (s *Store) Scan(ctx context.Context, visit func(Entry) error) error {
	p := scanning{store: s, visit: visit}
	for {
		began := p.last
		err := p.pass(ctx)
		if err == nil || p.refused || ctx.Err() != nil || p.last == began {
			return err
		}
	}
}

// scanning is one scan under way.
type scanning struct {
	store   *Store
	visit   func(Entry) error
	last    uint64 // revision up to which entries were visited
	refused bool   // visit returned an error
}

// pass visits what lies above p.last. It has a plain consumer of its own: one
// that the client library keeps in order starts over by revision with each
// pull, and then yields revisions that are not the newest of their key.
func (p *scanning) pass(ctx context.Context) (err error) {
	name := p.store.stream
	defer func() {
		if err != nil && !p.refused {
			err = fmt.Errorf("kvstate: scan %s: %w", name, err)
		}
	}()
	cons, err := p.store.js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
		FilterSubject:     p.store.prefix + ">",
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: scanIdle,
	})
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		// Left behind it costs little and ends by itself.
		_ = p.store.js.DeleteConsumer(bounded, name, cons.CachedInfo().Name)
	}()
	seen := uint64(0)
	for left := cons.CachedInfo().NumPending; left > 0; {
		batch, err := cons.Fetch(int(min(left, scanPull)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return err
		}
		before := seen
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if seen++; meta.Sequence.Consumer != seen {
				return errInterrupted // nothing is sent twice without acks
			}
			left = meta.NumPending
			if err := p.take(m, meta); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if seen == before {
			return errInterrupted
		}
	}
	return nil
}

// take visits an entry unless an earlier pass did.
func (p *scanning) take(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
	if meta.Sequence.Stream <= p.last {
		return nil
	}
	p.last = meta.Sequence.Stream
	e := p.store.scanned(m, meta)
	if e.Raw == nil {
		return nil // deleted or expired
	}
	err := p.visit(e)
	p.refused = err != nil
	return err
}

func (s *Store) scanned(m jetstream.Msg, meta *jetstream.MsgMetadata) Entry {
	key := command.Token(strings.TrimPrefix(m.Subject(), s.prefix))
	if Own(key) && !deleted(m.Headers()) {
		return Entry{Key: key, Revision: meta.Sequence.Stream, Raw: m.Data()}
	}
	return entryOf(key, meta.Sequence.Stream, meta.Timestamp, m.Headers(), m.Data())
}
