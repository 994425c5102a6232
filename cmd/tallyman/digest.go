package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// digestCommand needs no server: it is a handler that is at hand wherever
// tallyman is, even in an image that holds nothing else.
type digestCommand struct{}

// Run prints the digest of what it reads.
func (c *digestCommand) Run(ctx context.Context, out *cli.Out) error {
	h := sha256.New()
	if _, err := io.Copy(h, cli.Until(ctx, os.Stdin)); err != nil {
		return fmt.Errorf("digest: read stdin: %w", err)
	}
	_, err := fmt.Fprintf(out, "%x\n", h.Sum(nil))
	return err
}
