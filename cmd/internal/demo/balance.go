package demo

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// balance proves that no command was lost between the stream and the bucket:
// every sequence that the stream ever gave out is accounted for by a record, or
// by an entry of its own, and nothing is left in the stream. It returns what is
// wrong, empty if the books balance.
func balance(ctx context.Context, commands *stream.Stream, records *kvstate.Store) (string, error) {
	state, err := commands.State(ctx)
	if err != nil {
		return "", fmt.Errorf("close the books: %w", err)
	}
	accounted := map[uint64]bool{}
	err = records.Scan(ctx, func(e kvstate.Entry) error {
		if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
			accounted[seq] = true
		}
		if e.Record != nil {
			for _, seq := range e.Record.Seqs {
				accounted[seq] = true
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("close the books: %w", err)
	}
	return gaps(accounted, state), nil
}

// gaps says which sequences are missing, and what is left in the stream.
func gaps(accounted map[uint64]bool, state stream.State) string {
	var missing, first uint64
	for seq := uint64(1); seq <= state.LastSeq; seq++ {
		if !accounted[seq] {
			if missing == 0 {
				first = seq
			}
			missing++
		}
	}
	switch {
	case missing > 0:
		return fmt.Sprintf("%d of %d sequences are not accounted for, the first is %d", missing, state.LastSeq, first)
	case state.Messages > 0:
		return fmt.Sprintf("left in the stream: %d", state.Messages)
	}
	return ""
}
