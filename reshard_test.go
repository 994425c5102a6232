package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

var errCut = errors.New("cut off here")

// However often it is cut off, and wherever, running it again completes it.
func TestReshard_CutOffAnywhere(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ from, to int }{{1, 4}, {4, 1}, {3, 5}, {5, 3}, {2, 2}} {
		t.Run(fmt.Sprintf("%d to %d", c.from, c.to), func(t *testing.T) {
			t.Parallel()
			s := scatter(t, c.from)
			seed := uint64(time.Now().UnixNano()) + uint64(i)
			rng := rand.New(rand.NewPCG(seed, seed))
			points, cuts := map[string]bool{}, 0
			for {
				var passed atomic.Int64
				last := int64(1 + rng.IntN(2*c.to+12))
				var where atomic.Value
				_, err := tallyman.ReshardUntil(t.Context(), s.nc, "main", c.to, "ann", func(point, _ string) error {
					if passed.Add(1) >= last {
						where.Store(point)
						return errCut
					}
					return nil
				})
				if err == nil {
					break
				}
				if !errors.Is(err, errCut) {
					t.Fatalf("seed %d, after %d cuts: %v", seed, cuts, err)
				}
				if at := where.Load().(string); at != "reshard-marked" && !strings.Contains(err.Error(), fmt.Sprintf("complete that with: tallyman reshard --shards %d", c.to)) {
					t.Errorf("cut off at %s: got %v, want it to name the remedy", at, err)
				}
				points[where.Load().(string)] = true
				if cuts++; cuts > 500 {
					t.Fatalf("seed %d: it never ends", seed)
				}
				s.kept(t)
				if p, err := tallyman.Open(t.Context(), s.nc, "main"); err == nil || !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), fmt.Sprintf("--shards %d", c.to)) {
					t.Errorf("open after a cut: got %v, %v, want it refused with the remedy", p, err)
				}
			}
			t.Logf("seed %d: cut off %d times, at %v", seed, cuts, points)
			s.whole(t, c.to)
		})
	}
}

func TestReshard_TurnedBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to int }{{1, 3}, {3, 1}, {3, 4}} {
		t.Run(fmt.Sprintf("%d to %d", c.from, c.to), func(t *testing.T) {
			t.Parallel()
			s := scatter(t, c.from)
			points := []string{"reshard-copied", "reshard-commit"}
			if c.to < c.from {
				points = append([]string{"reshard-dropping", "reshard-dropped"}, points...)
			}
			for _, at := range points {
				_, err := tallyman.ReshardUntil(t.Context(), s.nc, "main", c.to, "ann", func(point, _ string) error {
					if point == at {
						return errCut
					}
					return nil
				})
				if !errors.Is(err, errCut) {
					t.Fatal(err)
				}
				if _, err := tallyman.Reshard(t.Context(), s.nc, "main", 17, "ann"); !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), fmt.Sprintf("turn it back with: tallyman reshard --shards %d", c.from)) {
					t.Errorf("another number: got %v", err)
				}
				if err := tallyman.Create(t.Context(), s.nc, "main", tallyman.Settings{}, tallyman.Topology{Change: true}); !errors.Is(err, tallyman.ErrSettings) {
					t.Errorf("create meanwhile: got %v, want it refused", err)
				}
				done, err := tallyman.Reshard(t.Context(), s.nc, "main", c.from, "bob")
				if err != nil || !done.Resumed || done.To != c.from {
					t.Fatalf("turn back: got %+v, %v", done, err)
				}
				s.kept(t)
			}
			s.whole(t, c.from)
		})
	}
}

// A record in a shard that its id does not belong to is found and brought home.
func TestReshard_Misplaced(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := scatter(t, 3)
	p := pooltest.Open(t, s.nc)
	home := p.ShardOf("done-0")
	wrong := p.Shards()[(home.Index+1)%3]
	e, err := home.Records.Read(ctx, "done-0")
	if err != nil {
		t.Fatal(err)
	}
	if err := wrong.Records.PutWait(ctx, "done-0", e.Raw, 0); err != nil {
		t.Fatal(err)
	}
	if err := home.Records.GiveUp(ctx, "done-0", e.Revision); err != nil {
		t.Fatal(err)
	}
	var shards []audit.Shard
	for _, at := range p.Shards() {
		shards = append(shards, audit.Shard{Commands: at.Commands, Records: at.Records})
	}
	r, err := audit.RunShards(ctx, shards, audit.Options{Seal: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Balanced || r.MisplacedCount != 1 || len(r.Findings) != 1 || *r.Findings[0].Shard != wrong.Index || !strings.Contains(r.Findings[0].String(), "tallyman reshard --shards 3") {
		t.Fatalf("got %+v, want one finding: misplaced in shard %d", r, wrong.Index)
	}
	if done, err := tallyman.Reshard(ctx, s.nc, "main", 3, "ann"); err != nil || done.Moved != 1 {
		t.Errorf("got %+v, %v, want one moved", done, err)
	}
	s.audit(t, p, audit.Options{})
	if r, err := p.Find(ctx, "done-0"); err != nil || r.State != kvstate.Completed {
		t.Errorf("got %+v, %v, want its receipt", r, err)
	}
	s.audit(t, p, audit.Options{})
}

// Two records of one id in two shards are for a person to judge: all are named
// before anything is changed, or, of those that come later, before anything goes.
func TestReshard_TwoRecordsOfOneID(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := scatter(t, 3)
	p := pooltest.Open(t, s.nc)
	other := func(id string) (wrong tallyman.Shard, revision uint64) {
		t.Helper()
		wrong = p.Shards()[(p.ShardOf(command.Token(id)).Index+1)%3]
		r := *s.record(t, p, "parked-14")
		r.ID, r.Revision, r.Seqs = id, 0, nil
		revision, err := wrong.Records.WriteWait(ctx, command.Token(id), &r)
		if err != nil {
			t.Fatal(err)
		}
		return wrong, revision
	}
	names := func(err error, ids ...string) {
		t.Helper()
		if !errors.Is(err, kvstate.ErrStale) || !strings.Contains(err.Error(), fmt.Sprintf("two buckets disagree about %d entries", len(ids))) {
			t.Fatalf("got %v, want %v named", err, ids)
		}
		for _, id := range ids {
			home := p.ShardOf(command.Token(id))
			in := []string{home.Records.Bucket(), p.Shards()[(home.Index+1)%3].Records.Bucket()}
			slices.Sort(in)
			if want := fmt.Sprintf("%s in %s and %s", id, in[0], in[1]); !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
	type place struct {
		at       tallyman.Shard
		revision uint64
	}
	wrong := map[string]place{}
	for _, id := range []string{"done-0", "done-1", "done-2"} {
		at, revision := other(id)
		wrong[id] = place{at, revision}
	}
	for _, shards := range []int{2, 3, 4} {
		_, err := tallyman.Reshard(ctx, s.nc, "main", shards, "ann")
		names(err, "done-0", "done-1", "done-2")
		if !errors.Is(err, tallyman.ErrBusy) {
			t.Errorf("got %v, want %v", err, tallyman.ErrBusy)
		}
		if again, err := tallyman.Open(ctx, s.nc, "main"); err != nil {
			t.Errorf("nothing is to be changed yet: %v", err)
		} else if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	for id, p := range wrong {
		if err := p.at.Records.GiveUp(ctx, command.Token(id), p.revision); err != nil {
			t.Fatal(err)
		}
	}
	// What comes once it has begun is met on the way: the rest is carried.
	cut := errors.New("cut off")
	if _, err := tallyman.ReshardUntil(ctx, s.nc, "main", 4, "ann", func(point, _ string) error {
		if point == "reshard-marked" {
			return cut
		}
		return nil
	}); !errors.Is(err, cut) {
		t.Fatalf("got %v, want %v", err, cut)
	}
	clear(wrong)
	for _, id := range []string{"done-3", "done-4"} {
		at, revision := other(id)
		wrong[id] = place{at, revision}
	}
	_, err := tallyman.Reshard(ctx, s.nc, "main", 3, "ann") // turned back
	names(err, "done-3", "done-4")
	if !strings.Contains(err.Error(), "nobody can open the pool") {
		t.Errorf("got %v, want that the pool stays closed", err)
	}
	for id, p := range wrong {
		if e, err := p.at.Records.Read(ctx, command.Token(id)); err != nil || e.Revision != p.revision {
			t.Errorf("%s: got %+v, %v, want both records to stay", id, e, err)
		}
		if err := p.at.Records.GiveUp(ctx, command.Token(id), p.revision); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := tallyman.Reshard(ctx, s.nc, "main", 3, "ann"); err != nil || !done.Resumed {
		t.Errorf("once that is clear: got %+v, %v", done, err)
	}
	s.kept(t)
}

func TestReshard_Refused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Shards: 2}, tallyman.Topology{})
	s := &scattered{nc: nc}
	refused := func(shards int, kind error, want string) {
		t.Helper()
		if _, err := tallyman.Reshard(ctx, nc, "main", shards, "ann"); !errors.Is(err, kind) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %v with %q", err, kind, want)
		}
		if again, err := tallyman.Open(ctx, nc, "main"); err != nil {
			t.Errorf("open after a refusal: %v", err)
		} else if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	refused(0, tallyman.ErrSettings, "give 1 to 256")
	if _, err := tallyman.Reshard(ctx, nc, "none", 2, "ann"); !errors.Is(err, tallyman.ErrNoPool) {
		t.Errorf("no pool: got %v", err)
	}
	stop := s.work(t, p, false)
	pooltest.Await(t, ctx, "a pull", func() bool {
		q, err := p.Commands().Queue(ctx, "default")
		return err == nil && q.Waiting > 0
	})
	refused(3, tallyman.ErrBusy, "stop all workers first")
	stop()
	if _, err := p.Submit(ctx, tallyman.Command{ID: "a", Kind: "echo"}); err != nil {
		t.Fatal(err)
	}
	refused(3, tallyman.ErrBusy, "holds 1 command:")
	stop = s.work(t, p, false)
	if _, err := p.Wait(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	pooltest.Await(t, ctx, "empty streams", func() bool { return pending(t, p) == 0 })
	stop()
	refused(3, tallyman.ErrBusy, "tallyman audit --seal")
	s.audit(t, p, audit.Options{Seal: true})

	aside := &kvstate.Record{ID: "x", Kind: "k"}
	aside, err := aside.Advance(kvstate.Parked, "worker-1", "malformed", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if aside.Revision, err = p.Shards()[1].Records.WriteWait(ctx, kvstate.MalformedKey(1), aside); err != nil {
		t.Fatal(err)
	}
	refused(1, tallyman.ErrBusy, "1:_malformed/1 is parked in shard 1")

	// A worker that had opened the pool before the mark, and pulls after it.
	_, err = tallyman.ReshardUntil(ctx, nc, "main", 3, "ann", func(point, _ string) error {
		if point == "reshard-marked" {
			stop = s.work(t, p, false)
			pooltest.Await(t, ctx, "a pull", func() bool {
				q, err := p.Commands().Queue(ctx, "default")
				return err == nil && q.Waiting > 0
			})
		}
		return nil
	})
	if !errors.Is(err, tallyman.ErrBusy) {
		t.Errorf("with a worker that came late: got %v, want %v", err, tallyman.ErrBusy)
	}
	stop()
	if again, err := tallyman.Open(ctx, nc, "main"); err != nil {
		t.Errorf("open after that: %v", err)
	} else if err := again.Close(); err != nil {
		t.Error(err)
	}
	if done, err := tallyman.Reshard(ctx, nc, "main", 3, "ann"); err != nil || done.From != 2 || done.To != 3 || done.Resumed {
		t.Errorf("with that shard kept: got %+v, %v", done, err)
	}
	if err := tallyman.Create(ctx, nc, "main_3", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	refused(4, tallyman.ErrSettings, "a pool of its own")
}

// What was acked and did not leave the stream keeps a pool from being spread
// anew, and no waiting helps.
func TestReshard_RefusedForWhatLingers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	messages := filepath.Join(dir, "store", "jetstream/$G/streams/main_commands/msgs")
	var server *embedded.Server
	s := &scattered{}
	start := func() *tallyman.Pool {
		t.Helper()
		var err error
		if server, err = embedded.Start(embedded.Config{Dir: filepath.Join(dir, "store")}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Close)
		s.nc = pooltest.Connect(t, server.URL())
		return pooltest.Create(t, s.nc, tallyman.Settings{Removal: tallyman.RemovalAck}, tallyman.Topology{})
	}
	p := start()
	if _, err := p.Submit(t.Context(), tallyman.Command{ID: "a", Kind: "echo"}); err != nil {
		t.Fatal(err)
	}
	server.Kill()
	if err := os.CopyFS(filepath.Join(dir, "kept"), os.DirFS(messages)); err != nil {
		t.Fatal(err)
	}
	p = start()
	if _, err := tallyman.Reshard(t.Context(), s.nc, "main", 2, "ann"); !errors.Is(err, tallyman.ErrBusy) || !strings.Contains(err.Error(), "let the workers settle them") {
		t.Errorf("while it waits: got %v, want to wait for the workers", err)
	}
	stop := s.work(t, p, false)
	pooltest.Await(t, t.Context(), "an empty stream", func() bool { return pending(t, p) == 0 })
	stop()
	server.Kill()
	if err := os.RemoveAll(messages); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(messages, os.DirFS(filepath.Join(dir, "kept"))); err != nil {
		t.Fatal(err)
	}
	start()
	if _, err := tallyman.Reshard(t.Context(), s.nc, "main", 2, "ann"); !errors.Is(err, tallyman.ErrBusy) || !strings.Contains(err.Error(), "waiting does not help: tallyman audit names") {
		t.Errorf("once it is acked and still there: got %v, want that the audit names it", err)
	}
}

// On a cluster a scan may be answered by a replica that is behind.
func TestReshard_Cluster(t *testing.T) {
	t.Parallel()
	c := pooltest.Cluster(t)
	s := &scattered{nc: pooltest.Connect(t, c.URL()), receipts: map[string]tallyman.Receipt{}}
	s.js = pooltest.JetStream(t, s.nc)
	s.settings = tallyman.Settings{Shards: 1, Retention: time.Hour, MaxAttempts: 1}
	s.fill(t, tallyman.Topology{Replicas: 3})
	for _, shards := range []int{3, 1, 2} {
		tries := 0
		pooltest.Await(t, t.Context(), fmt.Sprintf("%d shards", shards), func() bool {
			done, err := tallyman.Reshard(t.Context(), s.nc, "main", shards, "ann")
			if tries++; err == nil && done.Resumed && tries == 1 {
				t.Fatalf("to %d: got %+v, %v", shards, done, err)
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, tallyman.ErrUnavailable) {
				t.Fatalf("to %d: %v", shards, err)
			}
			return err == nil // or else a leader was elected meanwhile
		})
		s.kept(t)
		name := fmt.Sprintf("KV_main_%d", shards-1)
		if shards == 1 {
			name = "KV_main"
		}
		var str jetstream.Stream
		pooltest.Await(t, t.Context(), "an answer about "+name, func() (ok bool) {
			var err error
			str, err = s.js.Stream(t.Context(), name)
			return err == nil
		})
		if got := str.CachedInfo().Config.Replicas; got != 3 {
			t.Errorf("got %d replicas, want 3", got)
		}
	}
	s.whole(t, 2)
	// A server that ends while it still makes a stream leaves goroutines behind.
	pooltest.Await(t, t.Context(), "all replicas", func() bool {
		for info := range s.js.ListStreams(t.Context()).Info() {
			if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
				return false
			}
			for _, r := range info.Cluster.Replicas {
				if !r.Current {
					return false
				}
			}
		}
		return true
	})
}

// One that was frozen while another completed it, and yet another went elsewhere, must not go on.
func TestReshard_Overtaken(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"reshard-created", "reshard-moved", "reshard-drop"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			s := scatter(t, 3)
			overtaken := false
			_, err := tallyman.ReshardUntil(t.Context(), s.nc, "main", 2, "ann", func(point, _ string) error {
				if point != where || overtaken {
					return nil
				}
				overtaken = true
				for _, shards := range []int{2, 5} {
					if _, err := tallyman.ReshardUntil(t.Context(), s.nc, "main", shards, "bob", func(string, string) error { return nil }); err != nil {
						t.Errorf("bob: %v", err)
					}
				}
				return nil
			})
			if !errors.Is(err, tallyman.ErrSettings) {
				t.Errorf("ann: got %v, want %v", err, tallyman.ErrSettings)
			}
			s.whole(t, 5)
		})
	}
}

// One that is interrupted before it has changed anything leaves the pool open.
func TestReshard_InterruptedAfterTheMark(t *testing.T) {
	t.Parallel()
	s := scatter(t, 2)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	_, err := tallyman.ReshardTrusting(ctx, s.nc, "main", 3, "ann", time.Hour, func(point, _ string) error {
		if point == "reshard-marked" {
			interrupt()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was interrupted", err)
	}
	p, err := tallyman.Open(t.Context(), s.nc, "main")
	if err != nil {
		t.Fatalf("got %v, want the pool as it was", err)
	}
	defer p.Close()
	if n := len(p.Shards()); n != 2 {
		t.Errorf("got %d shards, want 2", n)
	}
}

// A shard that is to go is looked through once more: what came into it meanwhile stays.
func TestReshard_DropsNothingThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	late, err := (&kvstate.Record{ID: "late", Kind: "echo"}).Advance(kvstate.Parked, "worker-1", "rejected", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	parked, err := kvstate.Encode(late)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		subject string
		body    []byte
		stream  string
		back    bool // it comes while the stream is gone and the bucket is not, and the pool is turned back
	}{
		"a command":                          {"main_1.commands.default.echo.late", nil, "main_1_commands", false},
		"a record":                           {"$KV.main_1.late", parked, "KV_main_1", false},
		"what is parked aside":               {"$KV.main_1._malformed/7", parked, "KV_main_1", false},
		"a record, where the stream is gone": {"$KV.main_1.late", parked, "KV_main_1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			s := scatter(t, 3)
			at, where := "reshard-drop", "main_2" // which goes before the other one is looked at
			if c.back {
				at, where = "reshard-dropping", "main_1"
			}
			_, err := tallyman.ReshardUntil(ctx, s.nc, "main", 1, "ann", func(point, id string) error {
				if point != at || id != where {
					return nil
				}
				_, err := s.js.Publish(ctx, c.subject, c.body)
				if err == nil && c.back {
					err = errCut
				}
				return err
			})
			if c.back {
				if !errors.Is(err, errCut) {
					t.Fatal(err)
				}
				_, err = tallyman.Reshard(ctx, s.nc, "main", 3, "ann")
			}
			if !errors.Is(err, tallyman.ErrBusy) {
				t.Errorf("got %v, want %v", err, tallyman.ErrBusy)
			}
			str, err := s.js.Stream(ctx, c.stream)
			if err != nil {
				t.Fatal(err)
			}
			if m, err := str.GetLastMsgForSubject(ctx, c.subject); err != nil || string(m.Data) != string(c.body) {
				t.Errorf("got %v, %v, want what came to be there still", m, err)
			}
		})
	}
}
