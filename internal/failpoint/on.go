//go:build failpoints

package failpoint

import (
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// Enabled is true in test builds alone (build tag failpoints).
const Enabled = true

// Hit kills or freezes this process as TALLYMAN_FAILPOINT asks.
func Hit(point, id string) {
	name, rest, ok := strings.Cut(os.Getenv("TALLYMAN_FAILPOINT"), "=")
	if !ok || name != point {
		return
	}
	parts := strings.SplitN(rest, ":", 3)
	if len(parts) < 2 {
		panic("TALLYMAN_FAILPOINT: want point=action:glob[:file], got " + rest)
	}
	if match, err := path.Match(parts[1], id); err != nil || !match {
		return
	}
	if len(parts) == 3 {
		f, err := os.OpenFile(parts[2], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		_ = f.Close()
	}
	signal := syscall.SIGKILL
	if parts[0] == "stop" {
		signal = syscall.SIGSTOP
	}
	if err := syscall.Kill(os.Getpid(), signal); err != nil {
		panic(err)
	}
	if signal == syscall.SIGKILL {
		select {} // dying
	}
	// The signal stops other threads first, perhaps: do not run on before it
	// has stopped this one too.
	time.Sleep(100 * time.Millisecond)
}
