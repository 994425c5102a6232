package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	clitest.Main(main)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(producerDir)
		os.Exit(code)
	}))
}

var producerDir string // empty: the producer was not compiled

// producer is the path of the other command, compiled once.
var producer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tallyman-worker-test-")
	if err != nil {
		return "", err
	}
	producerDir = dir
	out, err := exec.Command("go", "build", "-o", dir, "../producer").CombinedOutput()
	if err != nil {
		os.Stderr.Write(out)
	}
	return filepath.Join(dir, "producer"), err
})

// submit runs the producer against the server at url.
func submit(t *testing.T, url string, args ...string) string {
	t.Helper()
	path, err := producer()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"submit", "--server", url}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("producer %v: %v", args, err)
	}
	return string(out)
}

// poolFile writes a pool file with handlers into a folder of its own.
func poolFile(t *testing.T, handlers string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pool.yaml"), []byte("handlers:\n"+handlers), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// logged returns a field of the first line on stderr with the text.
func logged(t *testing.T, p *clitest.Process, text, field string) string {
	t.Helper()
	line := p.Line(t, text)
	var fields map[string]any
	if err := json.Unmarshal([]byte(strings.TrimSpace(line)), &fields); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	value, ok := fields[field].(string)
	if !ok {
		t.Fatalf("%q has no field %q", line, field)
	}
	return value
}
