package stream

import (
	"errors"
	"fmt"

	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Gather makes commands that are published at the same time share atomic
// batches of the server, and so one flush to disk. It needs a stream with
// Config.Batches; for any other one off gets the reason, once, and commands go
// one by one. Call it before any publish. Off must not block.
func (s *Stream) Gather(off func(error)) {
	s.group = pipeline.NewGroup(s.pipe, pipeline.GroupConfig{
		One: oneIsACopy,
		Off: func(err error) { off(fmt.Errorf("stream: %q takes no batches: %w", s.name, err)) },
	})
}

// oneIsACopy reports whether a batch was refused since one of its commands is
// in the stream already, or is being stored.
func oneIsACopy(err *pipeline.APIError) bool {
	switch err.Code {
	case 10201, // the batch has an id that is within the duplicate window, or twice in it
		10158: // a copy with the same id is being replicated
		return true
	}
	return errors.Is(classify(err), ErrRepeated)
}
