package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"

	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/dedupe"
)

// maxListLine bounds a line in bytes: what submit --wait prints holds a result.
const maxListLine = 64 << 20

func openList(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(name)
}

// accepted reads a list of accepted commands, a line at a time. A list is JSON
// lines if its first line is a JSON object with an id; otherwise each line is
// an id as it stands, spaces included. Empty lines are skipped.
func accepted(in io.Reader) iter.Seq2[audit.Accepted, error] {
	return func(yield func(audit.Accepted, error) bool) {
		lines := bufio.NewScanner(in)
		lines.Buffer(nil, maxListLine)
		asJSON, decided := false, false
		for n := 1; lines.Scan(); n++ {
			line := lines.Bytes()
			if len(line) == 0 {
				continue
			}
			if !decided {
				_, err := acceptedJSON(line)
				asJSON, decided = err == nil, true
			}
			var a audit.Accepted
			var err error
			if asJSON {
				a, err = acceptedJSON(line)
			} else {
				a = audit.Accepted{ID: string(line)}
			}
			if err == nil {
				_, err = dedupe.Token(a.ID)
			}
			if err != nil {
				err = fmt.Errorf("%w: line %d: %w", cli.ErrUsage, n, err)
			}
			if !yield(a, err) || err != nil {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(audit.Accepted{}, err)
		}
	}
}

func acceptedJSON(line []byte) (audit.Accepted, error) {
	var found struct {
		ID       *string `json:"id"`
		Sequence uint64  `json:"sequence"`
	}
	if line = bytes.TrimSpace(line); len(line) == 0 || line[0] != '{' {
		return audit.Accepted{}, errors.New("no JSON object, as the lines before")
	}
	if err := json.Unmarshal(line, &found); err != nil {
		return audit.Accepted{}, err
	}
	if found.ID == nil {
		return audit.Accepted{}, errors.New(`a JSON object without "id"`)
	}
	return audit.Accepted{ID: *found.ID, Sequence: found.Sequence}, nil
}
