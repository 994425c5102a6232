package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
)

// Archive asks for the files of a directory, which must not change meanwhile.
type (
	Archive  struct{ Dir string }
	Archived struct{ Files int }
)

var archive = tallyman.NewKind[Archive, Archived]("archive")

// every is after how many files the offset is saved, and so how many a crash
// makes the next worker pack again at most.
const every = 100

// packer packs files into an object store. Putting an object again replaces it
// as a whole, so those that a crash repeats do no harm.
type packer struct {
	store jetstream.ObjectStore
	log   func(what string, n uint64)
}

func (p packer) handle(ctx context.Context, claim *tallyman.Claim, in Archive) (Archived, error) {
	files, err := os.ReadDir(in.Dir) // sorted by name: the same in each attempt
	if err != nil {
		return Archived{}, err
	}
	p.log("begin", claim.Offset())
	err = tallyman.Each(ctx, claim, tallyman.Slice(files), every, func(ctx context.Context, n uint64, f os.DirEntry) error {
		body, err := os.ReadFile(filepath.Join(in.Dir, f.Name()))
		if err != nil {
			return err
		}
		packed, err := pack(body)
		if err != nil {
			return err
		}
		if _, err := p.store.PutBytes(ctx, f.Name()+".gz", packed); err != nil {
			return fmt.Errorf("store %s: %w", f.Name(), err)
		}
		p.log("packed", n)
		return nil
	})
	return Archived{Files: len(files)}, err
}

func pack(body []byte) ([]byte, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
