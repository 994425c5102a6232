package demo

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tallyman-go/tallyman/audit"
)

func TestSurvey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(path string, size int64) {
		t.Helper()
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(full, size); err != nil {
			t.Fatal(err)
		}
	}
	write("b/c.txt", 0)
	write("a.txt", 3)
	write(".git/config", 3)
	write("large.bin", maxFile+1)
	if err := os.Symlink(filepath.Join(dir, "a.txt"), filepath.Join(dir, "link.txt")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	p, err := survey(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, o := range p.orders {
		paths = append(paths, o.Path)
	}
	if want := []string{"a.txt", "b/c.txt"}; !slices.Equal(paths, want) {
		t.Errorf("files: got %q, want %q", paths, want)
	}
	if want := []string{"large.bin: larger than 64 MiB"}; !slices.Equal(p.skipped, want) {
		t.Errorf("skipped: got %q, want %q", p.skipped, want)
	}
	if got, want := p.orders[1].SHA256, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"; got != want {
		t.Errorf("digest of the empty file: got %s, want %s", got, want)
	}
}

func TestPacker_Read(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(path, []byte("as submitted"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	o, err := look(root, "a.txt")
	if err != nil {
		t.Fatal(err)
	}
	p := &packer{root: root}
	if body, err := p.read(o); err != nil || string(body) != "as submitted" {
		t.Errorf("unchanged: got %q, %v", body, err)
	}
	if err := os.WriteFile(path, []byte("as replaced!"), 0o600); err != nil {
		t.Fatal(err)
	}
	if body, err := p.read(o); err == nil {
		t.Errorf("changed: got %q, want an error", body)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if body, err := p.read(o); err == nil {
		t.Errorf("vanished: got %q, want an error", body)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ files, kills, freezes int }{{1, 2, 1}, {3, 2, 1}, {300, 2, 1}, {300, 0, 3}, {10, 5, 0}, {5, 0, 0}, {7, 20, 30}} {
		orders := make([]order, tt.files)
		for i := range orders {
			orders[i].Path = string(rune('a' + i))
		}
		kills, freezes := 0, 0
		faults := assign(orders, tt.kills, tt.freezes)
		for _, list := range faults {
			for _, f := range list {
				if f == faultKill {
					kills++
				} else {
					freezes++
				}
			}
		}
		if kills != tt.kills || freezes != tt.freezes {
			t.Errorf("%+v: got %d kills and %d freezes", tt, kills, freezes)
		}
		for _, o := range orders {
			if got, want := o.Pause != "", len(faults[o.Path]) > 0; got != want {
				t.Errorf("%+v: %q pauses: got %v, want %v", tt, o.Path, got, want)
			}
		}
	}
}

func TestFlaws(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		books audit.Report
		want  string
	}{
		"what the audit calls balanced is":    {audit.Report{Balanced: true}, ""},
		"what the audit found is counted":     {audit.Report{MissingCount: 2}, "the audit found missing sequences: 2, doubled: 0, stranded commands: 0, corrupt records: 0"},
		"a command left behind is no balance": {audit.Report{Balanced: true, Pending: 1}, "left in the stream: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := flaws(tt.books); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestBooks_Tally(t *testing.T) {
	t.Parallel()
	orders := []order{{Path: "one"}, {Path: "twice"}, {Path: "told-twice"}, {Path: "parked"}, {Path: "none"}}
	w := &watch{
		receipts: map[string]map[uint64]bool{"one": {7: true}, "twice": {8: true, 9: true}, "told-twice": {10: true}},
		parked:   map[string]string{"parked": "changed"},
	}
	var b Books
	b.tally(orders, w, map[string]int{"one": 1, "twice": 1, "told-twice": 2})
	if b.Receipts != 4 || b.Doubled != 2 || b.Parked != 1 || b.Lost != 1 || len(b.Notes) != 4 {
		t.Errorf("got %+v, want 4 receipts, 2 doubled, 1 parked, 1 lost, 4 notes", b)
	}
	if err := b.judge(0); err == nil {
		t.Error("books with a loss were judged to balance")
	}
}
