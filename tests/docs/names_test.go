package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Files in the file map are where it says.
func TestArchitecture_FileMap(t *testing.T) {
	t.Parallel()
	const root = "../.."
	_, text, _ := strings.Cut(read(t, root+"/ARCHITECTURE.md"), "## File map\n")
	table, _, _ := strings.Cut(text, "\n\nImports point")
	found := 0
	for _, row := range lines(table) {
		cells := strings.SplitN(strings.Trim(row, "|"), "|", 2)
		if len(cells) < 2 {
			continue
		}
		dirs := []string{}
		for _, m := range span.FindAllStringSubmatch(cells[0], -1) {
			dirs = append(dirs, m[1])
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("the file map names %s: %v", m[1], err)
			}
		}
		if len(dirs) == 0 {
			dirs = append(dirs, ".")
		}
	files:
		for _, m := range regexp.MustCompile("`([a-z_]+\\.go)`").FindAllStringSubmatch(cells[1], -1) {
			found++
			for _, dir := range dirs {
				if _, err := os.Stat(filepath.Join(root, dir, m[1])); err == nil {
					continue files
				}
			}
			t.Errorf("the file map has %s in %v, which is not there", m[1], dirs)
		}
	}
	if found < 80 {
		t.Errorf("found %d files in the file map: the pattern is wrong", found)
	}
}

// Tests, functions and methods that the documents name exist.
func TestNames(t *testing.T) {
	t.Parallel()
	const root = "../.."
	word := regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	words := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		for _, w := range word.FindAllString(read(t, path), -1) {
			words[w] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var documents []string
	for _, pattern := range []string{"/*.md", "/docs/*.md", "/docs/adr/*.md"} {
		some, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, some...)
	}
	words["CustomInboxPrefix"] = true // of nats.go
	// x.Name, x.Y.name, TestName and SomeName, perhaps called, and nothing else.
	name := regexp.MustCompile(`^(?:[A-Za-z]\w*\.)+([A-Za-z]\w*)(?:\(.*\))?$|^([A-Z][a-z]+[A-Z]\w*)(?:\(.*\))?$`)
	file := regexp.MustCompile(`\.(?:go|md|yaml|yml|sh|mod)$`)
	ours := regexp.MustCompile(`\b(?:tallyman|outbox|pgxtx|journal|runner|embedded|desk)\.([A-Z]\w*)`)
	found := 0
	for _, document := range documents {
		for _, block := range fenced(t, document, "go") {
			for _, m := range ours.FindAllStringSubmatch(block, -1) {
				if found++; !words[m[1]] {
					t.Errorf("%s shows %s, which is nowhere in the code", document, m[0])
				}
			}
		}
		for _, s := range span.FindAllStringSubmatch(anyFence.ReplaceAllString(read(t, document), ""), -1) {
			m := name.FindStringSubmatch(s[1])
			if m == nil || file.MatchString(s[1]) {
				continue
			}
			found++
			if !words[m[1]+m[2]] {
				t.Errorf("%s names `%s`, which is nowhere in the code", document, s[1])
			}
		}
	}
	if found < 150 {
		t.Errorf("found %d names: the pattern is wrong", found)
	}
}
