package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrDirInUse means that another embedded server, in this process or another,
// uses the directory. Two servers on one store would destroy it.
var ErrDirInUse = errors.New("store is in use by another server")

// guardFile lies beside the store and is held open and exclusively for as long
// as a server runs. The operating system lets go of it when the process ends,
// however it ends; the file itself stays.
const guardFile = ".in-use"

// guardDir creates dir if needed and reserves it for the caller until the
// returned file is closed.
func guardDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: create store directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, guardFile), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("embedded: store directory is not writable: %w", err)
	}
	if err := holdExclusively(f); err != nil {
		owner, _ := os.ReadFile(f.Name())
		f.Close()
		if errors.Is(err, errHeld) {
			return nil, fmt.Errorf("embedded: %s: %w (%s): stop it or choose another directory",
				dir, ErrDirInUse, strings.TrimSpace(string(owner)))
		}
		return nil, fmt.Errorf("embedded: reserve store directory: %w", err)
	}
	// Only a help for whoever reads the error above.
	if err := f.Truncate(0); err == nil {
		fmt.Fprintf(f, "process %d\n", os.Getpid())
	}
	return f, nil
}

var errHeld = errors.New("held by another")
