package main

import (
	"bufio"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

func TestSource(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, format, field, in string
		want                    []string // line id payload, or line ! part of the error
	}{
		{"JSON as it stands", "jsonl", "id", "{ \"id\": \"a\" }\r\n\n  \n{\"id\":12.50,\"x\":1}", []string{`1 a { "id": "a" }`, `4 12.50 {"id":12.50,"x":1}`}},
		{"a byte order mark", "jsonl", "id", "\xef\xbb\xbf{\"id\":\"a\"}\n", []string{`1 a {"id":"a"}`}},
		{"JSON with ids from the content", "jsonl", "", "[1]\n7\nno\n", []string{"1  [1]", "2  7", "3 ! not JSON"}},
		{"JSON with bad ids", "jsonl", "id", "{}\n{\"id\":null}\n{\"id\":true}\n{\"id\":{}}\n{\"id\":\"\"}\n{\"id\":\"\xff\"}\n[1]\n{\"id\":\"ok\"}\n",
			[]string{"1 ! no field", "2 ! holds null", "3 ! holds true", "4 ! holds {}", "5 ! is empty", "6 ! UTF-8", "7 ! JSON array", `8 ok {"id":"ok"}`}},
		{"half a surrogate pair in an id", "jsonl", "id", "{\"id\":\"a\\ud800\"}\n{\"id\":\"b\\ufffd\ufffd\"}\n{\"id\":\"\\ud83d\\ude00\"}\n",
			[]string{"1 ! UTF-8", "2 b\ufffd\ufffd {\"id\":\"b\\ufffd\ufffd\"}", `3 😀 {"id":"\ud83d\ude00"}`}},
		{"lines", "lines", "", "a\n\n b \r\nc", []string{"1  a", "3   b ", "4  c"}},
		{"a line at the limit and one above", "lines", "", strings.Repeat("x", 40) + "\r\n" + strings.Repeat("y", 41) + "\nz\n",
			[]string{"1  " + strings.Repeat("x", 40), "2 ! too large", "3  z"}},
		{"a line of many buffers", "lines", "", strings.Repeat("x", 1<<20) + "\nz\n", []string{"1 ! too large", "2  z"}},
		{"a long last line", "lines", "", strings.Repeat("x", 1<<20), []string{"1 ! too large"}},
		{"nothing", "lines", "", "", nil},
		{"a table", "csv", "id", "id,\"na\"\"me\"\n1,<a>\n\n2,\"x\ny\"\n", []string{`2 1 {"id":"1","na\"me":"<a>"}`, `4 2 {"id":"2","na\"me":"x\ny"}`}},
		{"a table with ids from the content", "csv", "", "a\nx\n", []string{`2  {"a":"x"}`}},
		{"a table with bad rows", "csv", "id", "id,v\n1\n,x\n2,\"a\"b\n3,\xff\n4,c\n",
			[]string{"2 ! wrong number of fields", "3 ! is empty", "4 ! bad row", "5 ! UTF-8", `6 4 {"id":"4","v":"c"}`}},
		{"an empty table", "csv", "id", "", nil},
		{"a table without rows", "csv", "id", "id\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			src, err := open(strings.NewReader(c.in), c.format, c.field, 40)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for r, ok := src.next(); ok; r, ok = src.next() {
				i := len(got)
				switch {
				case r.err == nil:
					got = append(got, fmt.Sprintf("%d %s %s", r.line, r.id, r.payload))
				case i < len(c.want) && strings.HasPrefix(c.want[i], fmt.Sprintf("%d ! ", r.line)) && strings.Contains(r.err.Error(), strings.SplitN(c.want[i], " ! ", 2)[1]):
					got = append(got, c.want[i])
				default:
					got = append(got, fmt.Sprintf("%d ! %v", r.line, r.err))
				}
			}
			if err := src.err(); err != nil {
				t.Error(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	t.Run("a column that is missing is wrong usage", func(t *testing.T) {
		t.Parallel()
		_, err := open(strings.NewReader("a,b\n"), "csv", "id", 40)
		if got := cli.Code(err); got != cli.ExitUsage {
			t.Errorf("got exit code %d (%v), want %d", got, err, cli.ExitUsage)
		}
	})
	t.Run("a column named twice", func(t *testing.T) {
		t.Parallel()
		if _, err := open(strings.NewReader("a,a\n"), "csv", "a", 40); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("got %v, want an error about the column that is there twice", err)
		}
	})
	t.Run("a quote that is never closed", func(t *testing.T) {
		t.Parallel()
		src, err := openCSV(bufio.NewReader(&endless{start: "a\n\""}), "", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := src.next(); ok {
			t.Errorf("got row %d, want none", r.line)
		}
		if err := src.err(); err == nil || !strings.Contains(err.Error(), "quote") {
			t.Errorf("got %v, want an error about the quote", err)
		}
	})
}

// endless is a file that goes on for ever.
type endless struct{ start string }

var block = []byte(strings.Repeat("x", 4095) + "\n")

func (e *endless) Read(b []byte) (int, error) {
	if e.start != "" {
		n := copy(b, e.start)
		e.start = e.start[n:]
		return n, nil
	}
	return copy(b, block), nil
}
