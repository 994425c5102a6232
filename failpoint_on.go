//go:build failpoints

package tallyman

import (
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

const failpointsEnabled = true

// failpoint kills or freezes this process as TALLYMAN_FAILPOINT asks. It holds
//
//	<point>=<kill|stop>:<glob of ids>[:<file>]
//
// With a file, the point acts only once: whoever creates the file first dies,
// so that a restarted worker passes.
func failpoint(point, id string) {
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
