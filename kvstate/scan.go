package kvstate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// A pull of a scan asks for at most scanPull entries, and for fewer where those
// seen so far were so large that it could exceed scanBytes. This bounds the
// memory of a scan, and how long a pull takes. The first asks for scanFirst.
const (
	scanFirst = 16
	scanPull  = 512
	scanBytes = 8 << 20
)

// scanIdle is how long visit may take over one pull before the server drops
// the scan's consumer, and how long the consumer stays if the scan was killed.
const scanIdle = 10 * time.Minute

// A scan that met a replica which lags behind the leader goes on above what
// that one knew: after scanPause, then after twice as long each time, up to
// scanPauseMost. Scan gives up where ctx has no end after scanPatience.
const (
	scanPause     = 20 * time.Millisecond
	scanPauseMost = 2 * time.Second
	scanPatience  = time.Minute
)

// scanAway is how long a scan asks again while nobody leads the bucket's stream,
// as during an election and when the lead is passed on.
const scanAway = 10 * time.Second

// errBehind means that the replicas that answered lag behind the leader.
var errBehind = errors.New("a replica lags behind the leader, and entries are missing from it; try again")

// errInterrupted means that a scan has missed entries.
var errInterrupted = errors.New("the server stopped sending; try again")

// Scan calls visit with the newest entry of every key that was there when it
// began, deleted ones left out, in the order of their revisions. An entry that
// is no record has Err set; keys that begin with "_" are passed on as they
// are, undecoded. Memory stays bounded whatever the size of the bucket. An
// error of visit ends the scan and is returned.
//
// On a replicated bucket one replica is read, which may lag: that what the leader had
// when the scan began was met is checked, and what is missing is read again from whatever
// replica answers then. Where none catches up until ctx ends, or for a minute, the scan fails.
//
// While nobody leads the bucket's stream it asks again, for 10 s at most; then the
// error matches ErrUnavailable.
//
// A key that is written during the scan may come a second time, with its newer
// revision.
func (s *Store) Scan(ctx context.Context, visit func(Entry) error) error {
	p := scanning{store: s, visit: visit}
	return p.run(ctx)
}

// Markers calls visit with the marker of every key that was deleted or purged,
// for as long as the marker lies there. What was deleted without one, as by a
// purge of the bucket's stream, shows nowhere. Memory and errors are as for Scan.
func (s *Store) Markers(ctx context.Context, visit func(Entry) error) error {
	p := scanning{store: s, visit: visit, markers: true}
	return p.run(ctx)
}

func (p *scanning) run(ctx context.Context) error {
	var end uint64
	err := p.led(ctx, func() (err error) {
		end, err = p.store.LastRevision(ctx)
		return err
	})
	if err != nil {
		return err
	}
	pause := scanPause
	for since := time.Now(); ; {
		began := p.last
		err := p.led(ctx, func() error { return p.pass(ctx) })
		switch {
		case p.refused || ctx.Err() != nil && err != nil:
			return err
		case err == nil:
			behind, err := p.behind(ctx, end)
			if err != nil || !behind {
				return err
			}
		case p.last == began:
			return err
		default:
			continue // interrupted: at once
		}
		if p.last > began {
			since = time.Now()
		}
		if time.Since(since) > scanPatience {
			return fmt.Errorf("kvstate: scan %s: %w", p.store.stream, errBehind)
		}
		if err := pipeline.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("kvstate: scan %s: %w: %w", p.store.stream, errBehind, err)
		}
		pause = min(2*pause, scanPauseMost)
	}
}

// led calls do, again and again while nobody leads the stream and do visits nothing.
func (p *scanning) led(ctx context.Context, do func() error) error {
	began := p.last
	pause := scanPause
	for since := time.Now(); ; pause = min(2*pause, scanPauseMost) {
		err := do()
		if p.refused {
			return err // as visit returned it
		}
		err = pipeline.Away(err)
		if !errors.Is(err, pipeline.ErrNoResponders) || p.last != began || time.Since(since) > scanAway {
			return err
		}
		if pipeline.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// behind reports whether the leader has an entry above what was visited that it
// had when its newest revision was end. What a replica knows is all there up to its end,
// so whatever it did not show lies above what it did.
func (p *scanning) behind(ctx context.Context, end uint64) (bool, error) {
	if p.last >= end {
		return false, nil
	}
	next, err := p.store.Next(ctx, ">", p.last+1)
	if err != nil {
		return false, err
	}
	return next.Revision > p.last && next.Revision <= end, nil
}

// scanning is one scan under way.
type scanning struct {
	store   *Store
	visit   func(Entry) error
	last    uint64 // revision up to which entries were visited
	largest int    // bytes of the largest entry so far
	refused bool   // visit returned an error
	markers bool   // visit markers, instead of all else
	movable func(Movable) error
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
	// One whose making got no answer is left behind: it costs little and ends by itself.
	cons, err := pipeline.Question(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return p.store.js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{
			FilterSubject:     p.store.prefix + ">",
			DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
			AckPolicy:         jetstream.AckNonePolicy,
			MemoryStorage:     true,
			Replicas:          1,
			InactiveThreshold: scanIdle,
		})
	})
	if err != nil {
		return err
	}
	defer func() {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = p.store.js.DeleteConsumer(bounded, name, cons.CachedInfo().Name)
	}()
	seen := uint64(0)
	for left := cons.CachedInfo().NumPending; left > 0; {
		// What a pull has not brought when its time ends is gone for this
		// consumer. One that brings nothing at all ends much earlier.
		batch, err := cons.Fetch(int(min(left, p.pull())), jetstream.FetchMaxWait(15*time.Second))
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
			// Entries that were still to come may be gone meanwhile.
			info, err := pipeline.Question(ctx, cons.Info)
			if err != nil {
				return err
			}
			if info.NumPending > 0 {
				return errInterrupted
			}
			return nil
		}
	}
	return nil
}

// pull returns how many entries to ask for.
func (p *scanning) pull() uint64 {
	if p.largest == 0 {
		return scanFirst
	}
	return uint64(min(max(scanBytes/p.largest, 1), scanPull))
}

// take visits an entry unless an earlier pass did.
func (p *scanning) take(m jetstream.Msg, meta *jetstream.MsgMetadata) error {
	p.largest = max(p.largest, len(m.Data()), 1)
	if meta.Sequence.Stream <= p.last {
		return nil
	}
	p.last = meta.Sequence.Stream
	e := p.store.scanned(m, meta)
	if (e.Raw == nil) != p.markers {
		return nil
	}
	var err error
	if p.movable != nil {
		err = p.movable(movable(e, m.Headers()))
	} else {
		err = p.visit(e)
	}
	p.refused = err != nil
	return err
}

func (s *Store) scanned(m jetstream.Msg, meta *jetstream.MsgMetadata) Entry {
	return s.entryAt(m.Subject(), meta.Sequence.Stream, meta.Timestamp, m.Headers(), m.Data())
}

// entryAt makes an entry of a message that was met without asking for its key.
// What belongs to the pool is left undecoded.
func (s *Store) entryAt(subject string, revision uint64, at time.Time, h nats.Header, data []byte) Entry {
	key := command.Token(strings.TrimPrefix(subject, s.prefix))
	if Own(key) && !deleted(h) {
		return Entry{Key: key, Revision: revision, Raw: data, At: at}
	}
	return entryOf(key, revision, at, h, data)
}
