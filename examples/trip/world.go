package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// world is the hotel and the bank: others' systems, which live on when we die.
// Like good ones they take an idempotency key, and answer a repeated request as
// they answered the first. Each effect is a file.
type world struct {
	dir   string
	calls string // every request that arrived, the repeated ones too
}

func openWorld(dir string) (*world, error) {
	w := &world{dir: filepath.Join(dir, "effects"), calls: filepath.Join(dir, "calls")}
	return w, os.MkdirAll(w.dir, 0o700)
}

// once has an effect, or had it before under the same key, and returns its reference.
func (w *world) once(key, effect string) (reference string, err error) {
	calls, err := os.OpenFile(w.calls, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(calls, "%s\n", key)
	if err = errors.Join(err, calls.Close()); err != nil {
		return "", err
	}
	// Written aside and linked, so that it is there whole or not at all.
	aside, err := os.CreateTemp(filepath.Dir(w.dir), "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(aside.Name()) }()
	_, err = aside.WriteString(effect)
	if err = errors.Join(err, aside.Close()); err != nil {
		return "", err
	}
	if err := os.Link(aside.Name(), filepath.Join(w.dir, url.PathEscape(key))); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return "no. " + key, nil
}

// effects lists what happened, sorted.
func (w *world) effects() ([]string, error) {
	files, err := os.ReadDir(w.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(w.dir, f.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, string(text))
	}
	slices.Sort(all)
	return all, nil
}

// repeated counts requests beyond the first of each key.
func (w *world) repeated() (n int, err error) {
	text, err := os.ReadFile(w.calls)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	seen := map[string]bool{}
	for key := range strings.Lines(string(text)) {
		if seen[key] {
			n++
		}
		seen[key] = true
	}
	return n, err
}
