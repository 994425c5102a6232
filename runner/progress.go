package runner

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxProgressLine bounds a line to what could ever be stored: a state of the
// server's usual limit of 1 MiB, in base64, with room to spare.
const maxProgressLine = 2 << 20

// readProgress hands each line of r to save, in order, until r ends or
// something is wrong. A last line without its newline may have been cut off by
// the end of the program, so it does not count.
func readProgress(r io.Reader, save func(offset uint64, state []byte) error) error {
	lines := bufio.NewReaderSize(r, 4<<10)
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxProgressLine:
			return fmt.Errorf("malformed progress: a line is longer than %d bytes; keep the state small, or store it elsewhere", maxProgressLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read progress: %w", err)
		}
		offset, state, err := parseProgress(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return err
		}
		if err := save(offset, state); err != nil {
			return fmt.Errorf("save progress at offset %d: %w", offset, err)
		}
		line = line[:0]
	}
}

// parseProgress reads "<offset>[ <state>]". The state is the rest of the line
// as it is, or decoded if it begins with "base64:".
func parseProgress(line []byte) (offset uint64, state []byte, err error) {
	number, rest, hasState := bytes.Cut(line, []byte(" "))
	offset, err = strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return 0, nil, fmt.Errorf("malformed progress line %.80q: it must begin with an offset, a whole number from 0 to %d, then a space and the state, if any", line, uint64(1<<64-1))
	}
	if !hasState {
		return offset, nil, nil
	}
	if encoded, ok := bytes.CutPrefix(rest, []byte("base64:")); ok {
		state, err = base64.StdEncoding.Strict().DecodeString(string(encoded))
		if err != nil {
			return 0, nil, fmt.Errorf("malformed progress line %.80q: the state is not base64 (standard alphabet, with padding, in one line): %w", line, err)
		}
		return offset, state, nil
	}
	return offset, bytes.Clone(rest), nil
}

// readAtMost reads r to its end. More than limit bytes are an error that
// rejects the command: a cut result would look like a whole one.
func readAtMost(r io.Reader, limit int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	if len(data) > limit {
		return nil, tooLarge(limit)
	}
	return data, nil
}
