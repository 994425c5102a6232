package tallyman_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
)

// TestPool_Denied guards against a permission that is missing looking like a
// server that does not answer.
func TestPool_Denied(t *testing.T) {
	_, as := guarded(t, `
		{user: admin, password: pw}
		{user: nothing, password: pw, permissions: {publish: {deny: "$JS.API.STREAM.INFO.>"}}}
		{user: nopull, password: pw, permissions: {publish: {deny: "$JS.API.CONSUMER.INFO.>"}}}`)

	admin, err := tallyman.Connect(as("admin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	if err := tallyman.Create(t.Context(), admin, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	wantDenied := func(t *testing.T, err error, subject string) {
		t.Helper()
		if !errors.Is(err, tallyman.ErrDenied) || !strings.Contains(err.Error(), subject) {
			t.Errorf("got %v, want ErrDenied with %s", err, subject)
		}
	}
	t.Run("opening", func(t *testing.T) {
		nc, err := tallyman.Connect(as("nothing"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_, err = tallyman.Open(t.Context(), nc, "main")
		wantDenied(t, err, "$JS.API.STREAM.INFO.KV_main")
	})
	t.Run("running a worker", func(t *testing.T) {
		nc, err := tallyman.Connect(as("nopull"))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		p, err := tallyman.Open(t.Context(), nc, "main")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		mux := &tallyman.Mux{}
		mux.Handle("k", tallyman.HandlerFunc(nil))
		w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux})
		if err != nil {
			t.Fatal(err)
		}
		wantDenied(t, w.Run(t.Context()), "$JS.API.CONSUMER.INFO.main_commands.default")
	})
}
