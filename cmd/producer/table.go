package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

var errNotUTF8 = errors.New("not valid UTF-8; convert the file first")

// maxRow bounds what an unclosed quote can swallow: no server takes a payload
// of more than 64 MiB.
const maxRow = 64 << 20

// table are the rows of a CSV file. The payload of a row is a JSON object with
// the columns in the order of the header, and all values are strings.
type table struct {
	csv    *csv.Reader
	budget *budget
	keys   [][]byte // of the object, quoted
	column int      // of the id; -1: none
	header []string
	failed error
}

// openCSV returns the rows of a file, each of at most the given bytes.
func openCSV(in *bufio.Reader, idField string, most int) (*table, error) {
	t := &table{budget: &budget{in: in, most: most, left: most}, column: -1}
	t.csv = csv.NewReader(t.budget)
	t.csv.ReuseRecord = true
	header, err := t.csv.Read()
	if errors.Is(err, io.EOF) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	t.header = slices.Clone(header)
	for i, name := range t.header {
		if slices.Contains(t.header[:i], name) {
			return nil, fmt.Errorf("the header names column %q twice; rename one of them", name)
		}
		key, err := quote(name)
		if err != nil {
			return nil, fmt.Errorf("read the header: %w", err)
		}
		t.keys = append(t.keys, key)
	}
	if idField != "" {
		if t.column = slices.Index(t.header, idField); t.column < 0 {
			return nil, missingColumn(idField, t.header)
		}
	}
	return t, nil
}

func (t *table) err() error { return t.failed }

func (t *table) next() (row, bool) {
	if t.failed != nil || t.keys == nil {
		return row{}, false
	}
	t.budget.left = t.budget.most
	values, err := t.csv.Read()
	var bad *csv.ParseError
	switch {
	case errors.Is(err, io.EOF):
		return row{}, false
	case errors.As(err, &bad):
		return row{line: bad.StartLine, err: fmt.Errorf("bad row: column %d: %w", bad.Column, bad.Err)}, true
	case err != nil:
		t.failed = fmt.Errorf("read the file: %w", err)
		return row{}, false
	}
	r := row{}
	r.line, _ = t.csv.FieldPos(0)
	if t.column >= 0 {
		if r.id = values[t.column]; r.id == "" {
			r.err = fmt.Errorf("column %q, which holds the id, is empty", t.header[t.column])
			return r, true
		}
		r.id = string([]byte(r.id)) // the reader reuses the row
	}
	r.payload, r.err = t.object(values)
	return r, true
}

// object spells a row as JSON.
func (t *table) object(values []string) ([]byte, error) {
	var b bytes.Buffer
	for i, v := range values {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(t.keys[i])
		b.WriteByte(':')
		value, err := quote(v)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", t.header[i], err)
		}
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// quote spells s as a JSON string, and < > & as they are.
func quote(s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, errNotUTF8 // JSON would change it
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// budget is a reader that refuses to read on without end.
type budget struct {
	in   io.Reader
	most int
	left int // until it is set to most again
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("a row has more than %d bytes; is a quote not closed?", b.most)
	}
	n, err := b.in.Read(p)
	b.left -= n
	return n, err
}
