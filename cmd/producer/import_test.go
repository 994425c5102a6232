package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/stream"
)

func TestImport(t *testing.T) {
	t.Parallel()
	s, pool := newPool(t, embedded.Config{MaxPayload: 256 << 10})
	dir := t.TempDir()
	for name, text := range map[string]string{
		"in.jsonl":       "{\"n\":1}\n\n{\"n\":2}\n{\"n\":1}\nnonsense\n{\"m\":3}\n",
		"clean.jsonl":    "{\"n\":10}\n{\"n\":11}\n",
		"conflict.jsonl": "{\"n\":10}\n{\"n\":11,\"x\":1}\n",
		"in.csv":         "sku,name\na1,Äpfel\nb2,\"x,y\"\nc3\n",
		"in.txt":         "one\ntwo\none\n" + strings.Repeat("x", 256<<10) + "\nthree\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, args string
		code       int
		want       summary
		stderr     []string
	}{
		{"JSON lines with bad ones", "in.jsonl --id-field n", 1, summary{5, 2, 1, 0, 2}, []string{"in.jsonl:5: ", "in.jsonl:6: "}},
		{"JSON lines again", "in.jsonl --id-field n", 1, summary{5, 0, 3, 0, 2}, []string{"in.jsonl:5: ", "in.jsonl:6: "}},
		{"clean JSON lines", "clean.jsonl --id-field n", 0, summary{2, 2, 0, 0, 0}, nil},
		{"a conflict alone", "conflict.jsonl --id-field n", 3, summary{2, 0, 1, 1, 0}, []string{"conflict.jsonl:2: ", "conflict"}},
		{"a table with a short row", "in.csv --id-field sku", 1, summary{3, 2, 0, 0, 1}, []string{"in.csv:4: "}},
		{"lines with a long one", "in.txt --id-from-content", 1, summary{5, 3, 1, 0, 1}, []string{"in.txt:4: ", "too large"}},
		{"the same lines again", "in.txt --id-from-content", 1, summary{5, 0, 4, 0, 1}, []string{"in.txt:4: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"import", "--server", s.URL(), "--kind", "k", "--json"}, strings.Fields(c.args)...)
			code, stdout, stderr := clitest.Run(t, dir, nil, args...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d", code, c.code)
			}
			want := fmt.Sprintf(`{"read":%d,"accepted":%d,"absorbed":%d,"conflicts":%d,"failed":%d}`+"\n",
				c.want.Read, c.want.Accepted, c.want.Absorbed, c.want.Conflicts, c.want.Failed)
			if stdout != want {
				t.Errorf("stdout: got %q, want %q", stdout, want)
			}
			if len(c.stderr) == 0 && stderr != "" {
				t.Errorf("stderr: got %q, want nothing", stderr)
			}
			for _, part := range c.stderr {
				if !strings.Contains(stderr, part) {
					t.Errorf("stderr: got %q, want it to contain %q", stderr, part)
				}
			}
		})
	}
	queues, err := pool.Commands().Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := queues[0].Pending, uint64(2+2+2+3); got != want {
		t.Errorf("commands in the stream: got %d, want %d", got, want)
	}
}

func TestImport_Usage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, args, stderr string }{
		{"no id", "- --kind k", "--id-field"},
		{"two ways to an id", "- --kind k --id-field a --id-from-content", "can't be used together"},
		{"fields in lines", "- --kind k --format lines --id-field a", "--id-from-content"},
		{"an unknown format", "- --kind k --format xml --id-from-content", "--format"},
		{"an invalid kind", "- --kind a.b --id-from-content", "kind"},
		{"no such file", "missing.jsonl --kind k --id-from-content", "missing.jsonl"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := clitest.Run(t, t.TempDir(), nil, append([]string{"import"}, strings.Fields(c.args)...)...)
			if code != 2 || !strings.Contains(stderr, c.stderr) {
				t.Errorf("got exit code %d and %q, want 2 and %q", code, stderr, c.stderr)
			}
		})
	}
}

// TestImport_Restart feeds an import line by line while its server goes and
// comes back. The text summary is checked on the way.
func TestImport_Restart(t *testing.T) {
	t.Parallel()
	s, pool := newPool(t, embedded.Config{})
	in, feed := io.Pipe()
	p := clitest.Start(t, t.TempDir(), in, "import", "-", "--server", s.URL(), "--kind", "k", "--id-from-content", "--format", "lines")
	line := 0
	write := func(n int) {
		for range n {
			line++
			if _, err := fmt.Fprintf(feed, "line %d\n", line); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(300)
	// Lines fit into the pipe before the import has even connected.
	first := command.Token(contentID([]byte("line 1")))
	for deadline := time.Now().Add(time.Minute); ; {
		if _, err := pool.Commands().Find(t.Context(), first); err == nil {
			break
		} else if !errors.Is(err, stream.ErrNotFound) || time.Now().After(deadline) {
			t.Fatalf("the first line is not there: %v", err)
		}
	}
	s.Kill()
	write(300)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	write(300)
	feed.Close()
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	// What the server stored and could not confirm any more is absorbed.
	var read, accepted, absorbed, conflicts, failed int
	if _, err := fmt.Sscanf(p.Stdout(), "read %d: accepted %d, absorbed %d, conflicts %d, failed %d\n", &read, &accepted, &absorbed, &conflicts, &failed); err != nil {
		t.Fatalf("%v: %q", err, p.Stdout())
	}
	if read != line || accepted+absorbed != line || conflicts+failed != 0 {
		t.Errorf("got %q, want all %d accepted or absorbed", p.Stdout(), line)
	}
}
