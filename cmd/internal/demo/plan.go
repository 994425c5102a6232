package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// Bounds on what is packed.
const (
	maxFile  = 64 << 20
	maxFiles = 20_000
	maxTotal = 2 << 30
)

// Where in its work a handler pauses for a fault.
const (
	beforeStoring = "before"
	afterStoring  = "after"
)

// order is the payload of a command: the file as it was when it was submitted.
type order struct {
	Path   string
	Size   int64
	SHA256 string
	Pause  string // beforeStoring, afterStoring or empty
}

type done struct {
	Packed int64 // bytes
}

var pack = tallyman.NewKind[order, done]("pack")

// plan is what is going to be packed.
type plan struct {
	orders  []order
	bytes   int64
	skipped []string // "path: why"
}

// skip notes what is left out. A path that could disturb a terminal is quoted.
func (p *plan) skip(path string, why any) {
	if command.ValidateID(path) != nil {
		path = strconv.Quote(path)
	}
	p.skipped = append(p.skipped, fmt.Sprintf("%s: %v", path, why))
}

// survey reads every regular file below root once. Symbolic links are not
// followed, .git is left out. What cannot be packed is skipped with a reason.
func survey(ctx context.Context, root *os.Root) (*plan, error) {
	p := &plan{skipped: []string{}}
	left := 0 // files beyond the bounds
	err := fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && path == ".":
			return err
		case err != nil:
			p.skip(path, reason(err))
			return nil
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		case command.ValidateID(path) != nil:
			p.skip(path, "its path is no valid id")
			return nil //nolint:nilerr // noted above; the walk goes on
		}
		if len(p.orders) >= maxFiles || p.bytes >= maxTotal {
			left++
			return nil
		}
		o, err := look(root, path)
		if err != nil {
			p.skip(path, reason(err))
			return nil
		}
		p.orders = append(p.orders, o)
		p.bytes += o.Size
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read directory %s: %w", root.Name(), err)
	}
	if left > 0 {
		p.skip(plural.Count(left, "more file"), fmt.Sprintf("beyond the bounds of %d files or %d bytes", maxFiles, maxTotal))
	}
	return p, nil
}

var errTooLarge = fmt.Errorf("larger than %d MiB", maxFile>>20)

// look describes a file as it is now.
func look(root *os.Root, path string) (order, error) {
	f, err := open(root, path)
	if err != nil {
		return order{}, err
	}
	defer f.Close()
	sum := sha256.New()
	// One byte more than allowed tells a file that has grown too large.
	n, err := io.Copy(sum, io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return order{}, err
	case n > maxFile:
		return order{}, errTooLarge
	}
	return order{Path: path, Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// open opens a regular file of bounded size, and nothing else: opening a pipe
// would wait for a writer.
func open(root *os.Root, path string) (*os.File, error) {
	info, err := root.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("no regular file")
	case info.Size() > maxFile:
		return nil, errTooLarge
	}
	return root.Open(path)
}

// reason is err without the path, which its reader knows.
func reason(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
