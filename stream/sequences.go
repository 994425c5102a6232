package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// walkBatch and walkBytes bound one answer of the server in commands and
	// in bytes, and with that the memory of a walk.
	walkBatch = 2048
	walkBytes = 4 << 20
)

// position is where a stored command lies.
type position struct {
	seq     uint64
	subject string
}

// Sequences calls visit with the sequence and the subject of every stored
// command up to and including sequence upTo, in rising order. It takes nothing
// from any worker: no consumer is involved. Memory stays bounded whatever the
// size of the stream; the bodies pass over the wire, since the server cannot
// leave them out. An error of visit ends the walk and is returned.
//
// What is stored or acked during the walk may or may not be visited. On a
// replicated stream a replica that lags may answer, which then lacks the
// newest commands and still has some that were acked.
func (s *Stream) Sequences(ctx context.Context, upTo uint64, visit func(seq uint64, subject string) error) error {
	for from := uint64(1); from <= upTo; {
		batch, more, err := s.positions(ctx, from)
		if err != nil {
			return fmt.Errorf("stream: walk from sequence %d: %w", from, err)
		}
		for _, p := range batch {
			if p.seq > upTo {
				return nil
			}
			if err := visit(p.seq, p.subject); err != nil {
				return err
			}
			from = p.seq + 1
		}
		if !more {
			return nil
		}
	}
	return nil
}

// positions reads one batch that begins at the first command with a sequence
// of at least from, and tells whether there are more behind it.
func (s *Stream) positions(ctx context.Context, from uint64) (batch []position, more bool, err error) {
	body, err := json.Marshal(map[string]any{"seq": from, "batch": walkBatch, "max_bytes": walkBytes})
	if err != nil {
		return nil, false, err
	}
	type answer struct {
		batch []position
		more  bool
		err   error
	}
	answers := make(chan answer, 1)
	var got []position // owned by the pipeline's goroutine until it is answered
	m := &nats.Msg{Subject: "$JS.API.DIRECT.GET." + s.name, Data: body}
	err = s.pipe.SendMany(m, func(m *nats.Msg, err error) bool {
		if err != nil {
			answers <- answer{err: err}
			return false
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
			if err != nil || seq < from {
				answers <- answer{err: fmt.Errorf("the server sent sequence %q", m.Header.Get(jetstream.SequenceHeader))}
				return false
			}
			got = append(got, position{seq, m.Header.Get(jetstream.SubjectHeader)})
			return true
		case "204": // the end of this answer
			left := m.Header.Get("Nats-Num-Pending")
			answers <- answer{batch: got, more: left != "" && left != "0" && len(got) > 0}
		case "404": // nothing at or behind from
			answers <- answer{batch: got}
		default:
			answers <- answer{err: fmt.Errorf("server says %s %s", status, m.Header.Get("Description"))}
		}
		return false
	})
	if err != nil {
		return nil, false, err
	}
	select {
	case a := <-answers:
		return a.batch, a.more, a.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}
