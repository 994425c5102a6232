package pipeline_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// An answer that JetStream is not there at present, here for an account that has
// none, is told as no answer at all: either may pass.
func TestGet_WhileJetStreamIsNotThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(conf, []byte("accounts: {A: {users: [{user: a, password: a}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := embedded.Start(embedded.Config{Dir: dir, ConfigFile: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := nats.Connect(server.URL(), nats.UserInfo("a", "a"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() }) // never fails
	_, err = pipe.Get(t.Context(), "KV_main", map[string]any{"seq": 1})
	api := (*pipeline.APIError)(nil)
	if !errors.Is(err, pipeline.ErrNoResponders) || !errors.As(err, &api) || api.Status != 503 {
		t.Errorf("got %v, want it to match ErrNoResponders, and to hold what the server said", err)
	}
}
