//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"go.uber.org/goleak"
)

// Where TestMain finds that it is to be a server: the store and the address.
const (
	serverDirEnv    = "TALLYMAN_E2E_SERVER_DIR"
	serverListenEnv = "TALLYMAN_E2E_SERVER_LISTEN"
	serverSyncEnv   = "TALLYMAN_E2E_SERVER_SYNC" // flush every write to disk
)

// workerBinary is built once for all tests.
var workerBinary string

func TestMain(m *testing.M) {
	if dir := os.Getenv(serverDirEnv); dir != "" {
		os.Exit(serve(dir, os.Getenv(serverListenEnv)))
	}
	os.Exit(test(m))
}

// serve is a server process: it prints its address and ends with its input.
func serve(dir, listen string) int {
	cfg := embedded.Config{Dir: dir, Listen: listen, SyncAlways: os.Getenv(serverSyncEnv) != ""}
	s, err := embedded.Start(cfg)
	// While the one before it was down, somebody else may have been given its port.
	for end := time.Now().Add(time.Minute); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		<-time.After(50 * time.Millisecond)
		s, err = embedded.Start(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer s.Close()
	fmt.Println(s.URL())
	_, _ = os.Stdin.Read(make([]byte, 1)) // ends when the test does
	return 0
}

func test(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tallyman-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary
	workerBinary = filepath.Join(dir, "testworker")
	build := exec.Command("go", "build", "-tags", "failpoints", "-o", workerBinary, "./testworker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build testworker: %v\n%s", err, out)
		return 1
	}
	code := pgtest.Main(m.Run)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
