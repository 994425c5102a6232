package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/runner"
)

// fenced returns the blocks of a document in one language.
func fenced(t *testing.T, path, language string) []string {
	t.Helper()
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(read(t, path), -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

func TestReadme(t *testing.T) {
	t.Parallel()
	const readme, example = "../../README.md", "../../example_test.go"
	t.Run("its Go code is that of the tested example", func(t *testing.T) {
		t.Parallel()
		blocks := fenced(t, readme, "go")
		if got, want := len(blocks), 1; got != want {
			t.Fatalf("got %d blocks of Go, want %d", got, want)
		}
		tested := lines(strings.Replace(read(t, example), "func Example() {", "func main() {", 1))
		at := 0
		for _, line := range lines(blocks[0]) {
			i := slices.Index(tested[at:], line)
			if i < 0 {
				t.Fatalf("the line %q is not in %s, or in another order", line, example)
			}
			at += i + 1
		}
	})
	t.Run("its output is that of the tested example", func(t *testing.T) {
		t.Parallel()
		_, rest, _ := strings.Cut(read(t, example), "// Output:\n")
		output, _, _ := strings.Cut(rest, "}\n")
		want := strings.TrimSpace(strings.ReplaceAll(output, "\t// ", ""))
		if !strings.Contains(read(t, readme), "```\n"+want+"\n```") {
			t.Errorf("%s does not show this output:\n%s", readme, want)
		}
	})
	t.Run("its pool file loads", func(t *testing.T) {
		t.Parallel()
		blocks := fenced(t, readme, "yaml")
		if got, want := len(blocks), 1; got != want {
			t.Fatalf("got %d pool files, want %d", got, want)
		}
		path := filepath.Join(t.TempDir(), "pool.yaml")
		if err := os.WriteFile(path, []byte(blocks[0]), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := runner.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Mux(runner.Options{}); err != nil {
			t.Error(err)
		}
	})
}

// Pool files in the document load. What does not begin with handlers is a part of one.
func TestHandlers_PoolFiles(t *testing.T) {
	t.Parallel()
	found := 0
	for _, text := range fenced(t, "../../docs/handlers.md", "yaml") {
		if !strings.Contains(text, "handlers:\n") {
			text = "handlers:\n" + text
		}
		dir := t.TempDir()
		for _, m := range regexp.MustCompile(`\./([a-z-]+\.sh)`).FindAllStringSubmatch(text, -1) {
			if err := os.WriteFile(filepath.Join(dir, m[1]), []byte("#!/bin/sh\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "pool.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := runner.Load(path); err != nil && !strings.Contains(err.Error(), "python3") { // may not be installed
			t.Errorf("%v\n%s", err, text)
		}
		found++
	}
	if found < 2 {
		t.Errorf("docs/handlers.md has %d pool files, want at least 2", found)
	}
}

// The story in the document is one that is told.
func TestDesk_Why(t *testing.T) {
	t.Parallel()
	got := block(t, "../../docs/desk.md", "why")
	want := "$ tallyman why --scan --utc img-7\n" + read(t, "../../story/testdata/takeover.txt")
	if got != want {
		t.Errorf("docs/desk.md shows:\n%s\nwant:\n%s", got, want)
	}
}

// anchors returns what links to the headings of a document look like.
func anchors(t *testing.T, document string) []string {
	t.Helper()
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(anyFence.ReplaceAllString(read(t, document), ""), -1) {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(kept, " ", "-"))
	}
	return all
}

func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	found := 0
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/adr/*.md", "../../bench/*.md"} {
		documents, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents {
			for _, m := range link.FindAllStringSubmatch(anyFence.ReplaceAllString(read(t, document), ""), -1) {
				if m[0] == "]()" {
					continue
				}
				found++
				target := document
				if m[1] != "" {
					target = filepath.Join(filepath.Dir(document), m[1])
				}
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s links to %s, which is not there", document, m[1])
				} else if m[2] != "" && !slices.Contains(anchors(t, target), m[2]) {
					t.Errorf("%s links to %s%s: there is no such heading", document, m[1], m[2])
				}
			}
		}
	}
	if found == 0 {
		t.Error("no links found: the pattern is wrong")
	}
}

func TestIDs_Table(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|$").FindAllStringSubmatch(read(t, "../../docs/ids.md"), -1)
	if len(rows) < 6 {
		t.Fatalf("docs/ids.md has %d rows of ids and tokens, want at least 6", len(rows))
	}
	for _, row := range rows {
		got, err := dedupe.Token(row[1])
		if err != nil || string(got) != row[2] {
			t.Errorf("token of %q: got %q, %v, docs/ids.md says %q", row[1], got, err, row[2])
		}
	}
}
