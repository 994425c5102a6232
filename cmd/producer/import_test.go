package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/embedded"
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

// stored returns how many commands the pool holds.
func stored(t *testing.T, pool *tallyman.Pool) uint64 {
	t.Helper()
	st, err := pool.Commands().State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Messages
}

// awaitStored waits until an import has submitted so many commands.
func awaitStored(t *testing.T, pool *tallyman.Pool, n uint64) {
	t.Helper()
	deadline, tick := time.After(2*time.Minute), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for stored(t, pool) < n {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the import does not submit")
		}
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
	awaitStored(t, pool, 1)
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

// bigImport is an import of many lines, whose last one never comes.
type bigImport struct {
	*clitest.Process
	pool *tallyman.Pool
	dir  string
	text string
	args []string
	in   *io.PipeReader
	more chan struct{} // closed to let it have more than the first lines
	fed  chan struct{} // closed once nothing is written to it any more
}

const bigLines = 20_000

// startBig returns once the import submits.
func startBig(t *testing.T) *bigImport {
	t.Helper()
	s, pool := newPool(t, embedded.Config{})
	var text strings.Builder
	for i := range bigLines {
		fmt.Fprintf(&text, "{\"sku\":%d}\n", i)
	}
	b := &bigImport{
		pool: pool, dir: t.TempDir(), text: text.String(), more: make(chan struct{}), fed: make(chan struct{}),
		args: []string{"--server", s.URL(), "--kind", "k", "--id-field", "sku", "--format", "jsonl", "--json"},
	}
	in, feed := io.Pipe()
	b.in = in
	go func() {
		defer close(b.fed)
		last := strings.LastIndex(strings.TrimSuffix(b.text, "\n"), "\n") + 1
		defer feed.Close()
		// Line by line, so that nothing cuts one. Ends with the process at the latest.
		n := 0
		for line := range strings.Lines(b.text[:last]) {
			if n++; n == bigLines/10 {
				<-b.more
			}
			if _, err := io.WriteString(feed, line); err != nil {
				return
			}
		}
	}()
	b.Process = clitest.Start(t, b.dir, in, append([]string{"import", "-"}, b.args...)...)
	t.Cleanup(func() { in.CloseWithError(io.ErrClosedPipe) }) // or the process would be waited for in vain
	awaitStored(t, pool, bigLines/20)
	return b
}

// end sends a signal while lines pour in, and returns the exit code and how much is stored.
func (b *bigImport) end(t *testing.T, s syscall.Signal) (code int, left uint64) {
	t.Helper()
	close(b.more)
	b.Signal(t, s)
	code = b.Wait(t)
	b.in.CloseWithError(io.ErrClosedPipe)
	<-b.fed
	if left = stored(t, b.pool); left >= bigLines-1 {
		t.Fatal("the import did not end in the middle")
	}
	return code, left
}

// TestImport_KilledInMidSubmit kills an import while it submits, and runs it
// again on the same lines.
func TestImport_KilledInMidSubmit(t *testing.T) {
	t.Parallel()
	b := startBig(t)
	code, before := b.end(t, syscall.SIGKILL)
	if code != -1 {
		t.Fatalf("the import ended with %d, want killed", code)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "big.jsonl"), []byte(b.text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := clitest.Run(t, b.dir, nil, append([]string{"import", "big.jsonl"}, b.args...)...)
	var sum summary
	if err := json.Unmarshal([]byte(stdout), &sum); err != nil || code != 0 {
		t.Fatalf("again: exit code %d, %q, %v; stderr %q", code, stdout, err, stderr)
	}
	if sum.Read != bigLines || sum.Accepted+sum.Absorbed != bigLines || uint64(sum.Absorbed) < before {
		t.Errorf("again: got %+v, want %d lines, those of the first run absorbed, at least %d", sum, bigLines, before)
	}
	// Had any been accepted twice, the stream would have handed out more sequences.
	st, err := b.pool.Commands().State(t.Context())
	if err != nil || st.Messages != bigLines || st.LastSeq != bigLines {
		t.Errorf("got the stream %+v, %v; want each of the %d ids once", st, err, bigLines)
	}
	report, err := audit.Run(t.Context(), b.pool.Commands(), b.pool.Records(), audit.Options{Against: func(yield func(audit.Accepted, error) bool) {
		for i := range bigLines {
			if !yield(audit.Accepted{ID: strconv.Itoa(i)}, nil) {
				return
			}
		}
	}})
	if err != nil || !report.Balanced || report.Pending != bigLines || report.Compared != bigLines {
		t.Errorf("got %+v, %v; want balanced books with all of them pending", report, err)
	}
}

// TestImport_SeesThroughWhatIsUnderWay interrupts an import while it submits.
func TestImport_SeesThroughWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	b := startBig(t)
	code, stored := b.end(t, syscall.SIGINT)
	var sum summary
	if err := json.Unmarshal([]byte(b.Stdout()), &sum); err != nil || code != 1 {
		t.Fatalf("exit code %d, %q, %v; want 1 and a summary", code, b.Stdout(), err)
	}
	if want := (summary{Read: int(stored), Accepted: int(stored)}); sum != want {
		t.Errorf("got %+v, want %+v: what the stream holds was accepted", sum, want)
	}
}

// TestImport_InterruptedBeforeItsFirstLine interrupts an import whose input has
// sent less than a line, and does not end.
func TestImport_InterruptedBeforeItsFirstLine(t *testing.T) {
	t.Parallel()
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	load := &loading{flags: &Import{Format: "jsonl"}, limit: 100}
	ended := make(chan error, 1)
	go func() { ended <- load.run(ctx, in) }()
	if _, err := io.WriteString(feed, "{"); err != nil { // which returns once it is read
		t.Fatal(err)
	}
	interrupt()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "import again to go on") {
			t.Errorf("got %v, want that it was interrupted", err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits for its input")
	}
}
