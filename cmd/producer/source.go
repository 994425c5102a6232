package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// open returns the rows of a file. IDField is empty if ids come from the content.
func open(in io.Reader, format, idField string, limit int) (source, error) {
	r := bufio.NewReaderSize(in, 64<<10)
	if bom, err := r.Peek(3); err == nil && bytes.Equal(bom, []byte("\xef\xbb\xbf")) {
		_, _ = r.Discard(3) // they have just been seen
	}
	if format == "csv" {
		return openCSV(r, idField, maxRow)
	}
	return &lines{in: r, json: format == "jsonl", idField: idField, limit: limit}, nil
}

// lines are the rows of a file with a payload on each line.
type lines struct {
	in      *bufio.Reader
	json    bool
	idField string
	limit   int

	line   int
	failed error
}

func (l *lines) err() error { return l.failed }

// next returns the next line that is not empty.
func (l *lines) next() (row, bool) {
	for l.failed == nil {
		text, tooLong, err := l.read()
		if err != nil && !errors.Is(err, io.EOF) {
			l.failed = fmt.Errorf("read line %d: %w", l.line, err)
			return row{}, false
		}
		if err != nil && len(text) == 0 && !tooLong {
			return row{}, false
		}
		r := row{line: l.line}
		switch {
		case tooLong:
			r.err = fmt.Errorf("the line is %w: the limit is %d bytes; store the body elsewhere and submit a reference", tallyman.ErrTooLarge, l.limit)
			return r, true
		case len(text) == 0, l.json && len(bytes.TrimSpace(text)) == 0:
			continue
		}
		r.payload = text
		if l.json {
			r.id, r.err = idOf(text, l.idField)
		}
		return r, true
	}
	return row{}, false
}

// read returns a line of its own memory, without its end. Of a line above the
// limit it keeps nothing, however long that is.
func (l *lines) read() (text []byte, tooLong bool, err error) {
	l.line++
	for {
		var part []byte
		part, err = l.in.ReadSlice('\n')
		if !tooLong {
			text = append(text, part...)
			if len(text) > l.limit+len("\r\n") {
				text, tooLong = nil, true
			}
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
	}
	text = bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
	if len(text) > l.limit {
		text, tooLong = nil, true
	}
	return text, tooLong, err
}

// idOf checks that a line is JSON and returns the id in it, empty if the field is.
func idOf(line []byte, field string) (string, error) {
	if field == "" {
		if !json.Valid(line) {
			return "", badJSON(json.Unmarshal(line, new(json.RawMessage)))
		}
		return "", nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return "", badJSON(err)
	}
	value, ok := object[field]
	if !ok {
		return "", fmt.Errorf("there is no field %q to take the id from", field)
	}
	if !utf8.Valid(value) {
		return "", fmt.Errorf("field %q, which holds the id, is %w", field, errNotUTF8)
	}
	var id string
	if value[0] == '"' {
		if err := json.Unmarshal(value, &id); err != nil {
			return "", badJSON(err)
		}
		if id == "" {
			return "", fmt.Errorf("field %q, which holds the id, is empty", field)
		}
		if replaced(id, value) {
			return "", fmt.Errorf("field %q, which holds the id, is %w", field, errNotUTF8)
		}
		return id, nil
	}
	var number json.Number
	if err := json.Unmarshal(value, &number); err != nil || number == "" {
		return "", fmt.Errorf("field %q holds %.40s; an id is a string or a number", field, value)
	}
	return number.String(), nil // as it is spelled: 1 and 1.0 are two ids
}

// replaced tells whether reading the literal of s put U+FFFD in the place of half
// a surrogate pair: two such ids would become one.
func replaced(s string, literal []byte) bool {
	const mark = string(utf8.RuneError)
	spelled := bytes.Count(literal, []byte(mark)) + bytes.Count(bytes.ToLower(literal), []byte(`\ufffd`))
	return strings.Count(s, mark) > spelled
}

func badJSON(err error) error {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Errorf("the line is a JSON %s, not an object with fields", kind.Value)
	}
	return fmt.Errorf("the line is not JSON: %w", err)
}

// missingColumn says that a file has no column to take ids from.
func missingColumn(field string, header []string) error {
	return cli.Usage(fmt.Errorf("--id-field %s: there is no such column, only %q", field, header))
}
