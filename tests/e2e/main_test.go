//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"go.uber.org/goleak"
)

// Where TestMain finds that it is to be a server: the store and the address.
const (
	serverDirEnv    = "TALLYMAN_E2E_SERVER_DIR"
	serverListenEnv = "TALLYMAN_E2E_SERVER_LISTEN"
	serverSyncEnv   = "TALLYMAN_E2E_SERVER_SYNC" // flush every write to disk
)

// What tests run as processes. Each can be told to die.
var (
	binaries        string // where they are
	workerProgram   = program("testworker", "./testworker")
	operatorProgram = program("tallyman", "../../cmd/tallyman")
	producerProgram = program("producer", "../../cmd/producer")
)

// program compiles a command when it is first asked for. It does so as go test
// does, with cgo or without: otherwise all it is made of would be compiled twice.
func program(name, source string) func() (path string, err error) {
	return sync.OnceValues(func() (string, error) {
		path := filepath.Join(binaries, name)
		if out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", path, source).CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return path, nil
	})
}

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
	binaries = dir
	if _, err := workerProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pooltest.SideBySide(2) // each has processes of its own
	code := pgtest.Main(m.Run)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
