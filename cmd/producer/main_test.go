package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/clitest"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pgtest"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	clitest.Main(main)
	os.Exit(pgtest.Main(func() int {
		code := m.Run()
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}))
}

// newPool starts a server with a pool.
func newPool(t *testing.T, cfg embedded.Config) (*embedded.Server, *tallyman.Pool) {
	t.Helper()
	cfg.Dir = t.TempDir()
	s, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, pooltest.Create(t, pooltest.Connect(t, s.URL()), tallyman.Settings{}, tallyman.Topology{})
}

// work runs a worker until the test ends.
func work(t *testing.T, p *tallyman.Pool, handle tallyman.HandlerFunc) {
	t.Helper()
	mux := &tallyman.Mux{}
	mux.Handle("k", handle)
	w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Run(t, w.Run)
}
