package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// digestCommand needs no server: it is a handler that is at hand wherever
// tallyman is, even in an image that holds nothing else.
type digestCommand struct {
	stdin io.Reader // for tests; os.Stdin if nil
}

// Run prints the digest of what it reads.
func (c *digestCommand) Run(out *cli.Out) error {
	if c.stdin == nil {
		c.stdin = os.Stdin
	}
	h := sha256.New()
	if _, err := io.Copy(h, c.stdin); err != nil {
		return fmt.Errorf("digest: read stdin: %w", err)
	}
	_, err := fmt.Fprintf(out, "%x\n", h.Sum(nil))
	return err
}
