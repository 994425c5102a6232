package tallyman_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// TestSweep_CreateTakesTheRemovalOfTheStream: what the settings say of the
// removal may be damaged, gone or wrong; the stream is what it is. Create
// either agrees with it or refuses before it has stored anything.
func TestSweep_CreateTakesTheRemovalOfTheStream(t *testing.T) {
	t.Parallel()
	other := map[tallyman.Removal]tallyman.Removal{tallyman.RemovalAck: tallyman.RemovalSweep, tallyman.RemovalSweep: tallyman.RemovalAck}
	for _, shards := range []int{1, 3} {
		r := newRig(t, sweeping, tallyman.Topology{})
		for lies, wrong := range other {
			for _, stored := range []string{"damaged", "gone", "wrong"} {
				name := fmt.Sprintf("%s-%s-%d", lies, stored, shards)
				t.Run(name, func(t *testing.T) {
					if err := tallyman.Create(r.ctx, r.nc, name, tallyman.Settings{Removal: lies, Shards: shards}, tallyman.Topology{}); err != nil {
						t.Fatal(err)
					}
					kv, err := r.js.KeyValue(r.ctx, name)
					if err != nil {
						t.Fatal(err)
					}
					whole, err := kv.Get(r.ctx, string(kvstate.KeySettings))
					if err != nil {
						t.Fatal(err)
					}
					var bad []byte
					switch stored {
					case "damaged":
						bad = whole.Value()[:20]
					case "wrong":
						bad = []byte(strings.Replace(string(whole.Value()), fmt.Sprintf("%q", lies), fmt.Sprintf("%q", wrong), 1))
					}
					if bad == nil {
						err = kv.Delete(r.ctx, string(kvstate.KeySettings))
					} else {
						_, err = kv.Put(r.ctx, string(kvstate.KeySettings), bad)
					}
					if err != nil {
						t.Fatal(err)
					}

					want := tallyman.Settings{Removal: wrong}
					err = tallyman.Create(r.ctx, r.nc, name, want, tallyman.Topology{Change: true})
					if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "removal of this pool is "+string(lies)) {
						t.Errorf("the other removal: got %v, want ErrSettings that names %s", err, lies)
					}
					e, err := kv.Get(r.ctx, string(kvstate.KeySettings))
					if bad == nil && err == nil || bad != nil && (err != nil || string(e.Value()) != string(bad)) {
						t.Errorf("after the refusal the settings are %v, %v, want them left alone", e, err)
					}

					if stored == "wrong" {
						if _, err := tallyman.Open(r.ctx, r.nc, name); !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "init --change") {
							t.Errorf("open: got %v, want ErrSettings and the remedy", err)
						}
						if err := tallyman.Create(r.ctx, r.nc, name, tallyman.Settings{}, tallyman.Topology{}); !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "init --change") {
							t.Errorf("create without change: got %v, want ErrSettings and the remedy", err)
						}
					}
					// Without a word about the removal, and with the right one.
					for _, want := range []tallyman.Settings{{}, {Removal: lies}} {
						if err := tallyman.Create(r.ctx, r.nc, name, want, tallyman.Topology{Change: true}); err != nil {
							t.Errorf("create: %v", err)
						}
					}
					p, err := tallyman.Open(r.ctx, r.nc, name)
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = p.Close() }() // never fails
					if got := p.Settings(); got.Removal != lies || got.Shards != shards {
						t.Errorf("got %+v, want removal %s and %d shards", got, lies, shards)
					}
				})
			}
		}
	}
	t.Run("shards that differ are refused before anything is stored", func(t *testing.T) {
		r := newRig(t, sweeping, tallyman.Topology{})
		if err := stream.Create(r.ctx, r.js, stream.Config{Pool: "odd_2"}); err != nil {
			t.Fatal(err)
		}
		err := tallyman.Create(r.ctx, r.nc, "odd", tallyman.Settings{Shards: 3, Removal: tallyman.RemovalSweep}, tallyman.Topology{})
		if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "odd_2_commands") {
			t.Errorf("got %v, want ErrSettings that names the stream", err)
		}
		if _, err := r.js.KeyValue(r.ctx, "odd_1"); err == nil {
			t.Error("a bucket was made all the same")
		}
	})
}

func TestSweep_Create(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{})
	t.Run("makes a stream from which an ack removes nothing", func(t *testing.T) {
		str, err := r.js.Stream(r.ctx, stream.Name("main"))
		if err != nil {
			t.Fatal(err)
		}
		cfg := str.CachedInfo().Config
		if cfg.Retention != jetstream.LimitsPolicy || cfg.Discard != jetstream.DiscardNew || !cfg.DiscardNewPerSubject || cfg.MaxMsgsPerSubject != 1 || cfg.MaxAge != 0 {
			t.Errorf("got %+v", cfg)
		}
		if r.Settings().Removal != tallyman.RemovalSweep || !r.Commands().Sweeps() {
			t.Errorf("opened: got removal %s", r.Settings().Removal)
		}
	})
	t.Run("is safe to repeat", func(t *testing.T) {
		for _, s := range []tallyman.Settings{{}, sweeping} {
			if err := tallyman.Create(r.ctx, r.nc, "main", s, tallyman.Topology{}); err != nil {
				t.Error(err)
			}
		}
	})
	for _, change := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuses the other way, with change %v", change), func(t *testing.T) {
			err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{Removal: tallyman.RemovalAck}, tallyman.Topology{Change: change})
			if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "make another pool") {
				t.Errorf("got %v, want ErrSettings and what to do", err)
			}
			if p := open(t, r.nc); p.Settings().Removal != tallyman.RemovalSweep {
				t.Errorf("afterwards the removal is %s", p.Settings().Removal)
			}
		})
	}
	t.Run("refuses a pool that was made with acks", func(t *testing.T) {
		if err := tallyman.Create(r.ctx, r.nc, "acks", tallyman.Settings{}, tallyman.Topology{}); err != nil {
			t.Fatal(err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "acks", sweeping, tallyman.Topology{Change: true}); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("got %v, want ErrSettings", err)
		}
	})
	t.Run("a pool whose stream was made the other way does not open", func(t *testing.T) {
		if err := tallyman.Create(r.ctx, r.nc, "odd", sweeping, tallyman.Topology{}); err != nil {
			t.Fatal(err)
		}
		if err := r.js.DeleteStream(r.ctx, stream.Name("odd")); err != nil {
			t.Fatal(err)
		}
		if err := stream.Create(r.ctx, r.js, stream.Config{Pool: "odd", Lease: time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := tallyman.Open(r.ctx, r.nc, "odd"); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("open: got %v, want ErrSettings", err)
		}
		if err := tallyman.Create(r.ctx, r.nc, "odd", sweeping, tallyman.Topology{}); !errors.Is(err, tallyman.ErrSettings) {
			t.Errorf("create: got %v, want ErrSettings", err)
		}
	})
}
