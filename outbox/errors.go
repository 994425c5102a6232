package outbox

import (
	"errors"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/lease"
)

// Errors that callers test for with errors.Is. The text of a returned error
// says what happened, to which id, and what to do next.
var (
	// ErrConflict means that the id already stands for another kind, payload or
	// queue. It is tallyman.ErrConflict.
	ErrConflict = command.ErrConflict
	// ErrInvalidID means that a command id breaks the rules of package command.
	ErrInvalidID = command.ErrInvalidID
	// ErrInvalidName means that a queue, kind, content type, key or run cannot be stored.
	ErrInvalidName = command.ErrInvalidName
	// ErrLeaseLost means that another holder of the command has been here
	// since. It is tallyman.ErrLeaseLost.
	ErrLeaseLost = lease.ErrLost
	// ErrStale means that a run has gone on since its events were read: roll
	// back, read them again and decide anew.
	ErrStale = errors.New("the run has gone on")
	// ErrNoSchema means that the database lacks tables of this package, or has
	// them in another version.
	ErrNoSchema = errors.New("the tables of the outbox are missing or differ")
	// ErrBackwards means that an offset was to go back.
	ErrBackwards = errors.New("an offset never goes back")
	// ErrNoRow means that no row has that id and state.
	ErrNoRow = errors.New("no such row")
)

// ErrMoved means that another holder of the command has moved its offset. It
// matches ErrLeaseLost: whoever gets it must roll back and stop.
var ErrMoved = fmt.Errorf("%w: the offset was moved by someone else", lease.ErrLost)
