package journal

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Errors that callers test for with errors.Is. The text of a returned error
// says what happened, to which run, and what to do next.
var (
	// ErrConflict means that the run is not where the decision expected it:
	// somebody else has decided meanwhile. Nothing was written. Load the run
	// again and decide anew.
	ErrConflict = errors.New("the run has moved on")
	// ErrUnconfirmed means that nobody could say whether the decision is
	// stored. Repeating the same Commit with the same commit id is safe.
	ErrUnconfirmed = errors.New("not confirmed")
	// ErrInvalid means that a run, event or decision breaks a rule. Nothing was written.
	ErrInvalid = errors.New("invalid decision")
	// ErrTooLarge means that a decision, or a command in it, does not fit into
	// one server message. Nothing was written.
	ErrTooLarge = errors.New("too large")
	// ErrFull means that the journal has reached its limit of bytes. Nothing was written.
	ErrFull = errors.New("journal is full")
	// ErrNoJournal means that the pool has no journal.
	ErrNoJournal = errors.New("no such journal")
	// ErrDamaged means that stored bytes are not what was written.
	ErrDamaged = errors.New("damaged")
	// ErrGap means that a decision of a run is missing, or is there twice.
	ErrGap = errors.New("gap in the run")
	// ErrUnavailable means that the server has no answer just now; nothing was done.
	ErrUnavailable = pipeline.ErrNoResponders
	// ErrDenied means that the server refused a subject to this user.
	ErrDenied = pipeline.ErrDenied

	// errNoEntry means that the stream holds no such message.
	errNoEntry = errors.New("no such entry")
	// errIndeterminate means that a write may have happened or not.
	errIndeterminate = pipeline.ErrIndeterminate
)

// classify gives the server's codes their meaning. It is the only place that knows them.
func classify(err error) error {
	api := (*pipeline.APIError)(nil)
	if !errors.As(err, &api) {
		return err
	}
	switch api.Code {
	case 10071, 10164: // wrong last sequence, by subject
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case 10077, 10047, 10023: // the store refused: a limit of the stream; insufficient storage or resources
		return fmt.Errorf("%w: %w", ErrFull, err)
	case 10054: // message size exceeds maximum
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case 10059: // stream not found
		return fmt.Errorf("%w: %w", ErrNoJournal, err)
	case 10037: // no message found
		return fmt.Errorf("%w: %w", errNoEntry, err)
	}
	return err
}

// absent turns the client library's word for a missing stream or consumer into ours.
func absent(err error, pool string) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrConsumerDeleted) {
		return fmt.Errorf("%w; create it with: tallyman init --pool %s --journal: %w", ErrNoJournal, pool, err)
	}
	return pipeline.Away(err)
}

// final reports whether trying again cannot help.
func final(err error) bool {
	for _, e := range []error{ErrTooLarge, ErrNoJournal, ErrDenied, ErrDamaged, ErrInvalid} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
