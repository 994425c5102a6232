package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/stream"
)

func TestAccepted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		want       []audit.Accepted
		fault      string // in the error that ends the list
	}{
		{"nothing", "", nil, ""},
		{"ids as they stand", "a b\r\n\n c\nd ", []audit.Accepted{{ID: "a b"}, {ID: " c"}, {ID: "d "}}, ""},
		{"an id that looks like JSON", "{a}\n{\"id\":\"x\"}\n", []audit.Accepted{{ID: "{a}"}, {ID: `{"id":"x"}`}}, ""},
		{"what submit prints", `{"id":"a b","sequence":7,"absorbed":false}` + "\n" + `{"id":"c","sequence":0,"absorbed":true,"state":"completed","result":"x"}` + "\n",
			[]audit.Accepted{{ID: "a b", Sequence: 7}, {ID: "c"}}, ""},
		{"a line that is no JSON among them", `{"id":"a"}` + "\n\nb\n", []audit.Accepted{{ID: "a"}}, "line 3: "},
		{"a line without an id among them", `{"id":"a"}` + "\n{}\n", []audit.Accepted{{ID: "a"}}, `line 2: a JSON object without "id"`},
		{"an id that cannot be", "a\n" + strings.Repeat("x", 257) + "\nb\n", []audit.Accepted{{ID: "a"}}, "line 2: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got []audit.Accepted
			var ended error
			for a, err := range accepted(strings.NewReader(c.text)) {
				if err != nil {
					ended = err
					continue
				}
				got = append(got, a)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if (ended != nil) != (c.fault != "") || ended != nil && (!errors.Is(ended, cli.ErrUsage) || !strings.Contains(ended.Error(), c.fault)) {
				t.Errorf("got error %v, want wrong usage with %q", ended, c.fault)
			}
		})
	}
}

func listFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "accepted")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAudit_AgainstAList(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	var told strings.Builder
	for _, id := range []string{"a", "b b", "c"} {
		sub, err := p.Submit(t.Context(), tallyman.Command{ID: id, Kind: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&told, `{"id":%q,"sequence":%d,"absorbed":false}`+"\n", id, sub.Sequence)
	}
	list := listFile(t, told.String())
	s.run(t, "audit", "--against", list).expect(t, 0, "all 3 ids of the list")
	o := s.run(t, "audit", "--against", list, "--json")
	o.expect(t, 0)
	equal(t, o.object(t), "missing_ids", "[]")
	equal(t, o.object(t), "compared", "3")

	str, err := s.js(t).Stream(t.Context(), stream.Name("main"))
	if err != nil {
		t.Fatal(err)
	}
	if err := str.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	o = s.run(t, "audit", "--against", list, "--json")
	o.expect(t, 6, `1 of 3 ids of the list missing`)
	got := o.object(t)
	equal(t, got, "missing_id_count", "1")
	equal(t, got["missing_ids"].([]any)[0].(map[string]any), "id", "b b")
	equal(t, got["missing_ids"].([]any)[0].(map[string]any), "sequence", "2")
	s.run(t, "audit", "--against", list).expect(t, 6, `"b b": it was deleted by hand`)

	s.run(t, "audit", "--against", list+".not").expect(t, 2, "accepted.not")
	s.run(t, "audit", "--against", listFile(t, "a\n\x01\n")).expect(t, 2, "line 2")
}
