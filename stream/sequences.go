package stream

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/internal/pipeline"
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
	q := pipeline.Query{Stream: s.name, From: from, Batch: walkBatch, Bytes: walkBytes}
	return pipeline.Page(ctx, s.pipe, q, func(m pipeline.Stored) position { return position{m.Seq, m.Subject} })
}
