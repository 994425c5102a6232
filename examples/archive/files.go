package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// makeFiles makes small files, no two alike.
func makeFiles(dir string, n int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for i := range n {
		text := strings.Repeat(fmt.Sprintf("this is line after line of file %d\n", i), 20)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%06d.txt", i)), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// compare unpacks what the store holds for each file, and returns how many
// there are.
func compare(ctx context.Context, store jetstream.ObjectStore, dir string) (n int, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		want, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return n, err
		}
		packed, err := store.GetBytes(ctx, f.Name()+".gz")
		if err != nil {
			return n, fmt.Errorf("get %s: %w", f.Name(), err)
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return n, fmt.Errorf("unpack %s: %w", f.Name(), err)
		}
		got, err := io.ReadAll(r)
		if err != nil {
			return n, fmt.Errorf("unpack %s: %w", f.Name(), err)
		}
		if !bytes.Equal(got, want) {
			return n, fmt.Errorf("the stored %s is not like its original", f.Name())
		}
		n++
	}
	return n, nil
}

// readLog returns where each worker began, and how often each file was packed.
func readLog(path string) (began []uint64, packed map[uint64]int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	packed = map[uint64]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		var what string
		var n uint64
		if _, err := fmt.Sscan(line, &what, &n); err != nil {
			return nil, nil, fmt.Errorf("log line %q: %w", line, err)
		}
		if what == "begin" {
			began = append(began, n)
		} else {
			packed[n]++
		}
	}
	return began, packed, nil
}
