package tallyman_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
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

// A worker that may not pull from, ack in, or write to one shard says which
// subject it is, is not ready, and loses nothing by it.
func TestWorker_DeniedInOneShard(t *testing.T) {
	t.Parallel()
	for what, subject := range map[string]string{
		"pull":  "$JS.API.CONSUMER.MSG.NEXT.main_1_commands.default",
		"ack":   "$JS.ACK.main_1_commands.>",
		"write": "$KV.main_1.>",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			conf := filepath.Join(t.TempDir(), "nats.conf")
			if err := os.WriteFile(conf, fmt.Appendf(nil, `authorization { users: [
				{user: admin, password: pw}
				{user: worker, password: pw, permissions: {publish: {deny: %q}}}
			]}`, subject), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := embedded.Start(embedded.Config{Dir: t.TempDir(), ConfigFile: conf})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			as := func(user string) *tallyman.Pool {
				t.Helper()
				nc := pooltest.Connect(t, strings.Replace(s.URL(), "://", "://"+user+":pw@", 1))
				return pooltest.Create(t, nc, tallyman.Settings{Lease: time.Second, Shards: 2, MaxAttempts: 3, BackoffMin: 10 * time.Millisecond}, tallyman.Topology{})
			}
			admin := as("admin")
			ids := []string{"", ""}
			for i := 0; ids[0] == "" || ids[1] == ""; i++ {
				id := fmt.Sprint("c-", i)
				ids[admin.ShardOf(command.Token(id)).Index] = id
			}
			for _, id := range ids {
				if _, err := admin.Submit(t.Context(), tallyman.Command{ID: id, Kind: "echo"}); err != nil {
					t.Fatal(err)
				}
			}
			worker := as("worker")
			w, stop := start(t, worker, tallyman.WorkerConfig{Mux: handle("echo", echo)})
			var why error
			eventually(t, t.Context(), "word of what is denied", func() bool {
				why = w.Ready(t.Context())
				return errors.Is(why, tallyman.ErrDenied)
			})
			if part, _, _ := strings.Cut(subject, ".>"); !strings.Contains(why.Error(), part) {
				t.Errorf("got %v, want %s named", why, part)
			}
			if _, err := admin.Wait(t.Context(), ids[0]); err != nil {
				t.Errorf("in the other shard: %v", err)
			}
			stop()
			// One who may goes on.
			w, stop = start(t, admin, tallyman.WorkerConfig{Mux: handle("echo", echo)})
			if got, err := admin.Wait(t.Context(), ids[1]); err != nil || got.State != tallyman.Completed {
				t.Errorf("got %+v, %v", got, err)
			}
			eventually(t, t.Context(), "that worker to be ready", func() bool { return w.Ready(t.Context()) == nil })
			eventually(t, t.Context(), "empty streams", func() bool { return pending(t, admin) == 0 })
			stop()
		})
	}
}
