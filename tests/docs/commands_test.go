package docs_test

import (
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs are those whose command lines are looked at.
var programs = []string{"worker", "producer", "tallyman"}

// helps asks commands for their help, once each.
type helps struct {
	dir  string
	seen map[string]string
}

func buildPrograms(t *testing.T) *helps {
	t.Helper()
	h := &helps{dir: t.TempDir(), seen: map[string]string{}}
	args := []string{"build", "-o", h.dir}
	for _, p := range programs {
		args = append(args, "../../cmd/"+p)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return h
}

func (h *helps) of(t *testing.T, command ...string) string {
	t.Helper()
	key := strings.Join(command, " ")
	if text, ok := h.seen[key]; ok {
		return text
	}
	out, err := exec.Command(filepath.Join(h.dir, command[0]), append(command[1:len(command):len(command)], "--help")...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", key, err, out)
	}
	h.seen[key] = string(out)
	return string(out)
}

var (
	subcommand = regexp.MustCompile(`(?m)^  ([a-z]+)  +[A-Z]`)
	flagOf     = regexp.MustCompile(`--[a-z][a-z-]*`)
	span       = regexp.MustCompile("`([^`\n]+)`")
	anyFence   = regexp.MustCompile("(?s)```.*?```")
)

func (h *helps) subcommands(t *testing.T, program string) []string {
	t.Helper()
	var all []string
	_, commands, _ := strings.Cut(h.of(t, program), "Commands:\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	for _, m := range subcommand.FindAllStringSubmatch(commands, -1) {
		all = append(all, m[1])
	}
	return all
}

// commandLines returns what a document shows for a shell: lines of its sh
// blocks, and code within its text, cut into single commands.
func commandLines(t *testing.T, document string) []string {
	t.Helper()
	var shown []string
	for _, block := range fenced(t, document, "sh") {
		shown = append(shown, lines(strings.ReplaceAll(block, "\\\n", " "))...)
	}
	for _, m := range span.FindAllStringSubmatch(anyFence.ReplaceAllString(read(t, document), ""), -1) {
		shown = append(shown, m[1])
	}
	var single []string
	for _, line := range shown {
		line, _, _ = strings.Cut(line, " #")
		single = append(single, regexp.MustCompile(`\s(?:\||&&|;|>>)\s`).Split(line, -1)...)
	}
	return single
}

func TestCommandLines(t *testing.T) {
	t.Parallel()
	h := buildPrograms(t)
	documents := []string{"../../README.md", "../../CONTRIBUTING.md", "../../ARCHITECTURE.md"}
	more, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, document := range append(documents, more...) {
		for _, line := range commandLines(t, document) {
			words := strings.Fields(line)
			at := slices.IndexFunc(words, func(w string) bool { return slices.Contains(programs, path.Base(strings.Trim(w, "'"))) })
			if at < 0 || at+1 == len(words) {
				continue
			}
			command, rest := []string{path.Base(strings.Trim(words[at], "'"))}, words[at+1:]
			if all := h.subcommands(t, command[0]); len(all) > 0 {
				name := strings.Trim(rest[0], "'")
				switch {
				case slices.Contains(all, name):
					command, rest = append(command, name), rest[1:]
				case regexp.MustCompile(`^[a-z]+$`).MatchString(name):
					t.Errorf("%s shows %q: %s has no command %s", document, line, command[0], name)
					continue
				}
			}
			checked++
			known := flagOf.FindAllString(h.of(t, command...), -1)
			for _, word := range rest {
				if word == "--" {
					break
				}
				if f := flagOf.FindString(word); f != "" && strings.HasPrefix(strings.TrimLeft(word, "["), f) && !slices.Contains(known, f) {
					t.Errorf("%s shows %q: %s has no flag %s", document, line, strings.Join(command, " "), f)
				}
			}
		}
	}
	if checked < 60 {
		t.Errorf("looked at %d command lines: the pattern is wrong", checked)
	}
	t.Run("the exit codes of the help are those of docs/operations.md", func(t *testing.T) {
		_, codes, ok := strings.Cut(strings.Join(strings.Fields(h.of(t, "tallyman")), " "), "Exit codes: ")
		if text := strings.Join(strings.Fields(read(t, "../../docs/operations.md")), " "); !ok || !strings.Contains(text, codes) {
			t.Errorf("docs/operations.md does not say %q", codes)
		}
	})
}
