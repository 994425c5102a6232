package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// stray publishes a command to the first shard by hand, and returns its sequence there.
func (r *rig) stray(t testing.TB, kind, id, payload string, header ...string) uint64 {
	t.Helper()
	return r.publish(t, "main.commands.default."+kind+"."+id, payload, header...)
}

// filed reads what the first shard holds about one of its sequences.
func (r *rig) filed(t testing.TB, key command.Token) kvstate.Entry {
	t.Helper()
	e, err := r.Records().Read(r.ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// kept is how long the first shard keeps an entry, as its header says.
func (r *rig) kept(t testing.TB, key command.Token) string {
	t.Helper()
	s, err := r.js.Stream(r.ctx, "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(r.ctx, r.Records().Subject(key))
	if err != nil {
		t.Fatal(err)
	}
	return m.Header.Get(jetstream.MsgTTLHeader)
}

func TestForward_PlainPublish(t *testing.T) {
	t.Parallel()
	r := newRig(t, spread(), tallyman.Topology{Queues: []string{"default", "slow"}})
	var seen journal
	types := make(chan string, 3)
	start(t, r.Pool, tallyman.WorkerConfig{Queues: []string{"default", "slow"}, Observe: seen.observe, Mux: handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		types <- c.Queue() + " " + c.ContentType()
		return echo(ctx, c)
	})})
	for shard := range 3 {
		id := r.idIn(t, shard, "s", 0)
		seq := r.publish(t, "main.commands.slow.echo."+id, "x", "content-type", "text/x", "Nats-Msg-Id", id)
		if got, err := r.Wait(r.ctx, id); err != nil || string(got.Result) != "x" {
			t.Fatalf("wait for %s: got %+v, %v", id, got, err)
		}
		if got := <-types; got != "slow text/x" {
			t.Errorf("%s came as %q, want with its queue and content type", id, got)
		}
		r.emptied(t)
		want, forwarded := id, 1
		if shard == 0 {
			want, forwarded = "", 0
		}
		if got := r.filed(t, kvstate.AbsorbedKey(seq)); string(got.Raw) != want {
			t.Errorf("sequence %d of the first shard, for shard %d: got %q filed, want %q", seq, shard, got.Raw, want)
		}
		if shard != 0 && r.kept(t, kvstate.AbsorbedKey(seq)) == "" {
			t.Errorf("what is filed under sequence %d of the first shard never expires", seq)
		}
		if got := seen.count(tallyman.EventForwarded, id); got != forwarded {
			t.Errorf("%s was forwarded %d times, want %d", id, got, forwarded)
		}
	}
	late := r.idIn(t, 1, "late", 0)
	r.stray(t, "echo", late, "x", command.HeaderNotAfter, time.Now().Add(-time.Hour).Format(time.RFC3339Nano))
	if got, err := r.Wait(r.ctx, late); !errors.Is(err, tallyman.ErrParked) || got.Reason != kvstate.ReasonExpired {
		t.Errorf("one that comes too late: got %+v, %v, want it parked as expired", got, err)
	}
	r.emptied(t)
	if got := r.balanced(t); got.Completed != 3 || got.Absorbed != 3 || got.Parked != 1 || got.LastSeq != 7 {
		t.Errorf("books: got %+v", got)
	}
}

func TestForward_RepeatsAndConflicts(t *testing.T) {
	t.Parallel()
	r := newRig(t, spread(), tallyman.Topology{})
	var runs atomic.Int64
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		runs.Add(1)
		return echo(ctx, c)
	})})
	id := r.idIn(t, 2, "s", 0)
	r.submit(t, tallyman.Command{ID: id, Kind: "echo", Payload: []byte("x")})
	if _, err := r.Wait(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	copied := r.stray(t, "echo", id, "x")
	r.emptied(t)
	if got := r.filed(t, kvstate.AbsorbedKey(copied)); string(got.Raw) != id {
		t.Errorf("a copy: got %q filed, want it absorbed", got.Raw)
	}
	other := r.stray(t, "echo", id, "y")
	e := r.recordIn(t, kvstate.ConflictKey(other))
	if e.Reason != kvstate.ReasonConflict || string(e.Command.Payload) != "y" || e.ID != id || !e.Accounts(other) {
		t.Errorf("another command of the same id: got %+v, want it parked whole as a conflict", e)
	}
	altered := r.stray(t, "echo", r.idIn(t, 1, "s", 0), "z", command.HeaderDigest, "0000")
	if e := r.recordIn(t, kvstate.MalformedKey(altered)); e.Reason != kvstate.ReasonMalformed {
		t.Errorf("one that was altered: got %+v, want it parked as malformed", e)
	}
	large := r.stray(t, "echo", r.idIn(t, 1, "s", 1), strings.Repeat("z", r.Commands().Limit()+1))
	if e := r.recordIn(t, kvstate.MalformedKey(large)); e.Reason != kvstate.ReasonMalformed || !strings.Contains(e.Error, "main_1_commands") {
		t.Errorf("one that is too large to submit: got reason %s, %s", e.Reason, e.Error)
	}
	r.emptied(t)
	if got := runs.Load(); got != 1 {
		t.Errorf("the handler ran %d times, want once", got)
	}
	if got := r.balanced(t); got.Completed != 1 || got.Absorbed != 1 || got.Parked != 3 {
		t.Errorf("books: got %+v", got)
	}
}

// recordIn waits for a record of the first shard's own keys.
func (r *rig) recordIn(t testing.TB, key command.Token) *kvstate.Record {
	t.Helper()
	return r.recordAt(t, key, func(*kvstate.Record) bool { return true })
}

// A worker that dies while it forwards leaves one of these behind.
func TestForward_AfterACrash(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		submitted, filed bool
		settled          bool // the command has its receipt before the stray comes again
	}{
		{"it was submitted", true, false, false},
		{"it was submitted and has its receipt", true, false, true},
		{"it was submitted and filed", true, true, false},
		{"it was submitted, filed, and has its receipt", true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, spread(), tallyman.Topology{})
			var runs atomic.Int64
			cfg := tallyman.WorkerConfig{Mux: handle("echo", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				runs.Add(1)
				return echo(ctx, c)
			})}
			id := r.idIn(t, 1, "s", 0)
			r.submit(t, tallyman.Command{ID: id, Kind: "echo", Payload: []byte("x")})
			if c.settled {
				_, stop := start(t, r.Pool, cfg)
				if _, err := r.Wait(r.ctx, id); err != nil {
					t.Fatal(err)
				}
				r.emptied(t)
				stop()
			}
			seq := r.stray(t, "echo", id, "x")
			if c.filed {
				if err := r.Records().PutWait(r.ctx, kvstate.AbsorbedKey(seq), []byte(id), 0); err != nil {
					t.Fatal(err)
				}
			}
			start(t, r.Pool, cfg)
			if _, err := r.Wait(r.ctx, id); err != nil {
				t.Fatal(err)
			}
			r.emptied(t)
			if got := runs.Load(); got != 1 {
				t.Errorf("the handler ran %d times, want once", got)
			}
			if got := r.filed(t, kvstate.AbsorbedKey(seq)); string(got.Raw) != id {
				t.Errorf("sequence %d: got %q filed, want %q", seq, got.Raw, id)
			}
			if got := r.balanced(t); got.Completed != 1 || got.Absorbed != 1 || got.LastSeq != 2 {
				t.Errorf("books: got %+v", got)
			}
		})
	}
}

// A shard that takes nothing keeps its strays waiting, and nobody else.
func TestForward_ShardIsFull(t *testing.T) {
	t.Parallel()
	settings := spread()
	settings.Lease, settings.MaxAttempts = tallyman.MinLease, 100 // strays are given up soon, and what else loses that lease comes again
	r := newRig(t, settings, tallyman.Topology{Queues: []string{"default", "nobody"}})
	s, err := r.js.Stream(r.ctx, "main_2_commands")
	if err != nil {
		t.Fatal(err)
	}
	open := s.CachedInfo().Config
	full := open
	full.MaxMsgs = 1
	if _, err := r.js.UpdateStream(r.ctx, full); err != nil {
		t.Fatal(err)
	}
	r.submit(t, tallyman.Command{ID: r.idIn(t, 2, "first", 0), Kind: "echo", Queue: "nobody"})
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo), Concurrency: 4, Observe: seen.observe})
	var stuck []uint64
	for i := range 40 {
		stuck = append(stuck, r.stray(t, "echo", r.idIn(t, 2, "s", i), "x"))
	}
	for i := range 40 {
		id := r.idIn(t, i%2, fmt.Sprint("o-", i), 0)
		r.stray(t, "echo", id, "x")
		if _, err := r.Wait(r.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range stuck {
		if _, err := r.Commands().Get(r.ctx, seq); err != nil {
			t.Errorf("sequence %d cannot be forwarded: got %v, want it in the stream", seq, err)
		}
	}
	if n := seen.count(tallyman.EventDropped, ""); n == 0 {
		t.Error("no stray was left to its lease")
	}
}
