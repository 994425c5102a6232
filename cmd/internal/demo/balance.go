package demo

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// balance audits the pool at its end, when nothing may be left in the stream.
// It returns what is wrong, empty if the books balance.
func balance(ctx context.Context, commands *stream.Stream, records *kvstate.Store) (string, error) {
	books, err := audit.Run(ctx, commands, records, audit.Options{})
	if err != nil {
		return "", fmt.Errorf("close the books: %w", err)
	}
	return flaws(books), nil
}

// flaws says why the books of a demo do not balance.
func flaws(books audit.Report) string {
	switch {
	case !books.Balanced:
		return fmt.Sprintf("the audit found missing sequences: %d, doubled: %d, stranded commands: %d, corrupt records: %d",
			books.MissingCount, books.DoubledCount, books.StrandedCount, books.CorruptCount)
	case books.Pending > 0:
		return fmt.Sprintf("left in the stream: %d", books.Pending)
	}
	return ""
}
