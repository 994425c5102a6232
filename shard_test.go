package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestShards_CreateAndOpen(t *testing.T) {
	t.Parallel()
	ctx, nc := t.Context(), pooltest.Connect(t, pooltest.Server(t).URL())
	js := pooltest.JetStream(t, nc)
	want := tallyman.Settings{Shards: 3}
	if err := tallyman.Create(ctx, nc, "main", want, tallyman.Topology{Queues: []string{"a", "b"}, MaxCommands: 10, MaxBytes: 3 << 20}); err != nil {
		t.Fatal(err)
	}
	p := pooltest.Open(t, nc)
	if got := p.Settings().Shards; got != 3 {
		t.Errorf("shards of the settings: got %d, want 3", got)
	}
	shards := p.Shards()
	if len(shards) != 3 {
		t.Fatalf("shards: got %d, want 3", len(shards))
	}
	for i, name := range []string{"main", "main_1", "main_2"} {
		if got := shards[i].Index; got != i {
			t.Errorf("index of shard %d: got %d", i, got)
		}
		if got := shards[i].Records.Bucket(); got != name {
			t.Errorf("bucket of shard %d: got %q, want %q", i, got, name)
		}
		s, err := js.Stream(ctx, name+"_commands")
		if err != nil {
			t.Fatal(err)
		}
		c := s.CachedInfo().Config
		if c.MaxMsgs != 4 || c.MaxBytes != 1<<20 {
			t.Errorf("limits of shard %d: got %d commands, %d bytes, want a third of each, rounded up", i, c.MaxMsgs, c.MaxBytes)
		}
		if q, err := shards[i].Commands.Queues(ctx); err != nil || len(q) != 2 {
			t.Errorf("queues of shard %d: got %v, %v, want two", i, q, err)
		}
	}
	if got := p.ShardOf("order/1").Index; got != 0 {
		t.Errorf("shard of order/1: got %d, want 0", got)
	}
	if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Errorf("create again: %v", err)
	}
}

func TestShards_Refusals(t *testing.T) {
	t.Parallel()
	ctx, nc := t.Context(), pooltest.Connect(t, pooltest.Server(t).URL())
	create := func(name string, shards int, topology tallyman.Topology) error {
		return tallyman.Create(ctx, nc, name, tallyman.Settings{Shards: shards}, topology)
	}
	for _, p := range []struct {
		name   string
		shards int
	}{{"main", 3}, {"other_2", 1}} {
		if err := create(p.name, p.shards, tallyman.Topology{}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(name string) error {
		p, err := tallyman.Open(ctx, nc, name)
		if err == nil {
			_ = p.Close()
		}
		return err
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"open a shard as a pool", open("main_1"), `it is shard 1 of pool "main"; use --pool main`},
		{"create a pool on a shard", create("main_2", 0, tallyman.Topology{}), `it is shard 2 of pool "main"; use --pool main`},
		{"create a sharded pool on a shard", create("main_2", 2, tallyman.Topology{Change: true}), `it is shard 2 of pool "main"; use --pool main`},
		{"create over a pool of its own", create("other", 3, tallyman.Topology{Change: true}), `"other_2", which is a pool of its own; choose another name`},
		{"more shards", create("main", 4, tallyman.Topology{}), "tallyman reshard"},
		{"more shards by change", create("main", 4, tallyman.Topology{Change: true}), "tallyman reshard"},
		{"fewer shards by change", create("main", 1, tallyman.Topology{Change: true}), "tallyman reshard"},
		{"shards for a pool without", create("other_2", 2, tallyman.Topology{Change: true}), "tallyman reshard"},
	} {
		if !errors.Is(c.err, tallyman.ErrSettings) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrSettings with %q", c.name, c.err, c.want)
		}
	}
	long := strings.Repeat("n", command.MaxNameLen-1)
	if err := create(long, 2, tallyman.Topology{}); !errors.Is(err, tallyman.ErrInvalidName) {
		t.Errorf("a name that is too long for a shard's: got %v, want ErrInvalidName", err)
	}
	if err := open(long); !errors.Is(err, tallyman.ErrNoPool) {
		t.Errorf("what was refused: got %v, want ErrNoPool", err)
	}
	if err := open("other"); !errors.Is(err, tallyman.ErrNoPool) {
		t.Errorf("what was refused: got %v, want ErrNoPool", err)
	}
}

// A crash in the middle of Create leaves some of what it makes. It is played
// here by taking away what comes later, in every place.
func TestShards_CreateIsRepeatable(t *testing.T) {
	t.Parallel()
	ctx, nc := t.Context(), pooltest.Connect(t, pooltest.Server(t).URL())
	js := pooltest.JetStream(t, nc)
	remove := func(streams ...string) {
		for _, s := range streams {
			if err := js.DeleteStream(ctx, s); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Fatal(err)
			}
		}
	}
	first := []string{"main_commands", "KV_main"}
	for _, c := range []struct {
		name  string
		lost  []string
		kept  bool // the pool's settings
		again int  // shards given when it is repeated
	}{
		{"before the first shard", first, false, 0},
		{"before the first shard's settings", []string{"main_commands"}, false, 3},
		{"before the first shard's stream", []string{"main_commands"}, true, 0},
		{"before the last shard", append([]string{"main_2_commands", "KV_main_2"}, first...), false, 0},
		{"before the last shard's stream", append([]string{"main_2_commands"}, first...), false, 3},
		{"a shard was removed by hand", []string{"main_1_commands", "KV_main_1"}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{Shards: 3}, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			remove(c.lost...)
			if !c.kept {
				if kv, err := js.KeyValue(ctx, "main"); err == nil {
					if err := kv.Delete(ctx, string(kvstate.KeySettings)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := tallyman.Open(ctx, nc, "main"); !errors.Is(err, tallyman.ErrNoPool) || !strings.Contains(err.Error(), "tallyman init --pool main") {
				t.Errorf("open: got %v, want ErrNoPool with a remedy", err)
			}
			if !c.kept {
				err := tallyman.Create(ctx, nc, "main", tallyman.Settings{Shards: 2}, tallyman.Topology{Change: true})
				if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "--shards 3") {
					t.Errorf("with another number: got %v, want ErrSettings that names the first", err)
				}
			}
			if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{Shards: c.again}, tallyman.Topology{}); err != nil {
				t.Fatalf("create again: %v", err)
			}
			p, err := tallyman.Open(ctx, nc, "main")
			if err != nil {
				t.Fatalf("open after that: %v", err)
			}
			defer func() { _ = p.Close() }()
			if n := len(p.Shards()); n != 3 {
				t.Errorf("shards: got %d, want 3", n)
			}
		})
	}
}

// Whoever repeats it need not know how it was begun: the remedy that the errors name
// gives no flags.
func TestShards_CreateGoesOnAsBegun(t *testing.T) {
	t.Parallel()
	settings := tallyman.Settings{Shards: 3, Lease: 2 * time.Second, Removal: tallyman.RemovalSweep, Commit: tallyman.CommitGroup}
	topology := tallyman.Topology{Queues: []string{"default", "slow"}, MaxCommands: 300}
	for _, c := range []struct {
		name string
		lost []string
	}{
		{"before the first shard", []string{"main_commands", "KV_main"}},
		{"right after the first mark", []string{"main_commands", "KV_main", "main_1_commands", "main_2_commands", "KV_main_2"}},
		{"a stream was removed by hand", []string{"main_1_commands"}},
		{"a shard was removed by hand", []string{"main_2_commands", "KV_main_2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, nc := t.Context(), pooltest.Connect(t, pooltest.Server(t).URL())
			js := pooltest.JetStream(t, nc)
			if err := tallyman.Create(ctx, nc, "main", settings, topology); err != nil {
				t.Fatal(err)
			}
			for _, s := range c.lost {
				if err := js.DeleteStream(ctx, s); err != nil {
					t.Fatal(err)
				}
			}
			if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{Removal: tallyman.RemovalAck}, tallyman.Topology{}); !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "removal") {
				t.Errorf("with another removal: got %v, want ErrSettings that names it", err)
			}
			if err := tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			p := pooltest.Open(t, nc)
			if want := settings; p.Settings().WithDefaults() != want.WithDefaults() {
				t.Errorf("got %+v, want %+v", p.Settings(), want)
			}
			for _, s := range p.Shards() {
				queues, err := s.Commands.Queues(ctx)
				if err != nil || len(queues) != 2 || queues[0].Lease != settings.Lease {
					t.Errorf("shard %d: got queues %+v, %v, want two with their lease", s.Index, queues, err)
				}
				if state, err := s.Commands.State(ctx); err != nil || state.MaxMsgs != 100 {
					t.Errorf("shard %d: got %+v, %v, want room for 100 commands", s.Index, state, err)
				}
			}
		})
	}
}

// Settings that cannot be read at all say nothing about whose the bucket is. Each
// error names what mends it, and that does.
func TestShards_GarbledSettings(t *testing.T) {
	t.Parallel()
	ctx, nc := t.Context(), pooltest.Connect(t, pooltest.Server(t).URL())
	js := pooltest.JetStream(t, nc)
	settings := tallyman.Settings{Shards: 3, Lease: 2 * time.Second}
	if err := tallyman.Create(ctx, nc, "main", settings, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	fails := func(err error, want string) {
		t.Helper()
		if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want ErrSettings with %q", err, want)
		}
	}
	open := func() error {
		p, err := tallyman.Open(ctx, nc, "main")
		if err == nil {
			if p.Settings().WithDefaults() != settings.WithDefaults() {
				t.Errorf("got %+v, want %+v", p.Settings(), settings)
			}
			return p.Close()
		}
		return err
	}
	create := func(change bool) error {
		return tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{Change: change})
	}
	for bucket, remedy := range map[string]string{"main": "init --change", "main_2": "nats kv del main_2 _pool"} {
		kv, err := js.KeyValue(ctx, bucket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kv.Put(ctx, string(kvstate.KeySettings), []byte("no JSON")); err != nil {
			t.Fatal(err)
		}
		fails(open(), remedy)
		fails(create(false), remedy)
		if bucket != "main" {
			if err := kv.Delete(ctx, string(kvstate.KeySettings)); err != nil {
				t.Fatal(err)
			}
		}
		if err := create(bucket == "main"); err != nil {
			t.Errorf("%s: what the error advises: %v", bucket, err)
		}
		if err := open(); err != nil {
			t.Errorf("%s: open after that: %v", bucket, err)
		}
	}
}

func TestShards_EveryCommandRuns(t *testing.T) {
	t.Parallel()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Shards: 3}, tallyman.Topology{})
	mux := &tallyman.Mux{}
	mux.Handle("echo", tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: c.Payload()}, nil
	}))
	w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Run(t, w.Run)
	for i := range 30 {
		id := fmt.Sprintf("c-%d", i)
		if _, err := p.Submit(t.Context(), tallyman.Command{ID: id, Kind: "echo", Payload: []byte(id)}); err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(t.Context(), id); err != nil || string(r.Result) != id {
			t.Fatalf("wait for %s: got %+v, %v", id, r, err)
		}
	}
	for i, s := range p.Shards() {
		if st, err := s.Commands.State(t.Context()); err != nil || st.LastSeq == 0 {
			t.Errorf("shard %d: got %+v, %v, want some of the commands", i, st, err)
		}
	}
}
