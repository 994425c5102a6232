package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// What an effect says. The events of a worker stand beside these under their own names.
const (
	effectBegun  = "begun"  // a handler was called
	effectPaused = "paused" // it waits for a fault, or to be told to go on
	effectStored = "stored" // it stored the packed file
)

// effect is one line of a worker process's log of effects.
type effect struct {
	What    string `json:"what"`
	ID      string `json:"id"`
	Attempt int    `json:"attempt"`
}

// effects is the log of one worker process. Each line is one write to a file
// opened for appending, so whatever was written survives the process.
type effects struct{ file *os.File }

func openEffects(path string) (*effects, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of effects: %w", err)
	}
	return &effects{f}, nil
}

// add is safe for concurrent use.
func (l *effects) add(what, id string, attempt int) error {
	line, err := json.Marshal(effect{what, id, attempt})
	if err != nil {
		return err
	}
	if _, err = l.file.Write(append(line, '\n')); err != nil {
		slog.Error("effect not logged", "what", what, "id", id, "error", err)
	}
	return err
}

// tail reads a log of effects while it grows.
type tail struct {
	path   string
	offset int64
}

// next returns the whole lines that were added since the last call.
func (t *tail) next() ([]effect, error) {
	f, err := os.Open(t.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the process has only just begun
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, t.offset, 1<<40))
	if err != nil {
		return nil, err
	}
	var list []effect
	for {
		line, rest, whole := bytes.Cut(data, []byte{'\n'})
		if !whole {
			return list, nil
		}
		var e effect
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("log of effects %s at byte %d: %w", t.path, t.offset, err)
		}
		list = append(list, e)
		t.offset += int64(len(line)) + 1
		data = rest
	}
}
