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
)

// scanPull is how many entries one pull of a scan asks for. It bounds the memory of a scan.
const scanPull = 512

// Scan calls visit with the newest entry of every key that was there when it
// began, deleted ones left out, in the order of their revisions. An entry that
// is no record has Err set; keys that begin with "_" are passed on as they
// are, undecoded. Memory stays bounded whatever the size of the bucket. An
// error of visit ends the scan and is returned.
func (s *Store) Scan(ctx context.Context, visit func(Entry) error) error {
	cons, err := s.js.OrderedConsumer(ctx, s.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.prefix + ">"},
		DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
	})
	if err != nil {
		return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
	}
	for left := info.NumPending; left > 0; {
		batch, err := cons.Fetch(int(min(left, scanPull)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
		}
		n := 0
		for m := range batch.Messages() {
			n++
			meta, err := m.Metadata()
			if err != nil {
				return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
			}
			left = meta.NumPending
			e := s.scanned(m, meta)
			if e.Raw == nil {
				continue // deleted or expired
			}
			if err := visit(e); err != nil {
				return err
			}
		}
		if err := batch.Error(); err != nil {
			return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kvstate: scan %s: %w", s.stream, context.Cause(ctx))
		}
		if n == 0 {
			return fmt.Errorf("kvstate: scan %s: %w", s.stream, errors.New("the server stopped sending; try again"))
		}
	}
	return nil
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
