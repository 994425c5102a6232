package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/internal/pipeline"
)

const (
	// walkBatch and walkBytes bound one answer of the server in commands and
	// in bytes, and with that the memory of a walk.
	walkBatch = 2048
	walkBytes = 4 << 20

	// A walk that met a replica which lags reads on after walkPause, then after
	// twice as long each time, and gives up after walkPatience without progress.
	walkPause     = 20 * time.Millisecond
	walkPauseMost = 2 * time.Second
	walkPatience  = time.Minute
)

// errBehind means that the replicas that answered lag behind the leader.
var errBehind = errors.New("a replica lags behind the leader, and commands are missing from it; try again")

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
// replicated stream a replica that lags may answer, and still have some that were
// acked. What is missing from it is read again, until ctx ends or, where none of those that
// answer catches up, for a minute.
func (s *Stream) Sequences(ctx context.Context, upTo uint64, visit func(seq uint64, subject string) error) error {
	pause, since := walkPause, time.Now()
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
		if more {
			continue
		}
		if behind, err := s.behind(ctx, from, upTo); err != nil || !behind {
			return err
		}
		if len(batch) > 0 {
			since = time.Now()
		}
		if time.Since(since) > walkPatience {
			return fmt.Errorf("stream: walk from sequence %d: %w", from, errBehind)
		}
		if err := pipeline.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("stream: walk from sequence %d: %w: %w", from, errBehind, err)
		}
		pause = min(2*pause, walkPauseMost)
	}
	return nil
}

// behind reports whether the leader has a command from sequence from on, up to
// upTo, where the replica that was read had none.
func (s *Stream) behind(ctx context.Context, from, upTo uint64) (bool, error) {
	if from > upTo {
		return false, nil
	}
	next, err := s.get(ctx, map[string]any{"seq": from, "next_by_subj": s.prefix + ">"})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("stream: walk from sequence %d: %w", from, err)
	}
	return next.Seq <= upTo, nil
}

// positions reads one batch that begins at the first command with a sequence
// of at least from, and tells whether there are more behind it.
func (s *Stream) positions(ctx context.Context, from uint64) (batch []position, more bool, err error) {
	q := pipeline.Query{Stream: s.name, From: from, Batch: walkBatch, Bytes: walkBytes}
	return pipeline.Page(ctx, s.pipe, q, func(m pipeline.Stored) position { return position{m.Seq, m.Subject} })
}
