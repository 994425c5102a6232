package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// scattered is a pool whose commands are settled and whose books are sealed.
type scattered struct {
	nc       *nats.Conn
	js       jetstream.JetStream
	settings tallyman.Settings
	receipts map[string]tallyman.Receipt // of completed and parked commands, by id
	highest  uint64                      // revision of any bucket
}

const (
	spreadDone   = 14
	spreadParked = 6
)

func scatter(t *testing.T, shards int) *scattered {
	t.Helper()
	s := &scattered{nc: pooltest.Connect(t, pooltest.Server(t).URL()), receipts: map[string]tallyman.Receipt{}}
	s.js = pooltest.JetStream(t, s.nc)
	s.settings = tallyman.Settings{Shards: shards, Retention: time.Hour, MaxAttempts: 1}
	if shards == 3 {
		s.settings.Commit = tallyman.CommitGroup
	}
	s.fill(t, tallyman.Topology{MaxCommands: 1000})
	return s
}

// fill makes the pool, has its commands settled and seals its books.
func (s *scattered) fill(t *testing.T, topology tallyman.Topology) {
	t.Helper()
	p := pooltest.Create(t, s.nc, s.settings, topology)
	stop := s.work(t, p, false)
	for i := range spreadDone + spreadParked {
		id, kind := fmt.Sprintf("done-%d", i), "echo"
		if i >= spreadDone {
			id, kind = fmt.Sprintf("parked-%d", i), "frail"
		}
		if _, err := p.Submit(t.Context(), tallyman.Command{ID: id, Kind: kind, Payload: []byte(id)}); err != nil {
			t.Fatal(err)
		}
		s.receipts[id] = tallyman.Receipt{}
	}
	for id := range s.receipts {
		receipt, err := p.Wait(t.Context(), id)
		if err != nil && !errors.Is(err, tallyman.ErrParked) {
			t.Fatal(err)
		}
		s.receipts[id] = receipt
	}
	pooltest.Await(t, t.Context(), "empty streams", func() bool { return pending(t, p) == 0 })
	stop()
	if r := s.audit(t, p, audit.Options{Seal: true}); !r.Closed() {
		t.Fatalf("the books are not closed: %+v", r)
	}
	for _, at := range p.Shards() {
		last, err := at.Records.LastRevision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.highest = max(s.highest, last)
	}
}

func pending(t *testing.T, p *tallyman.Pool) (n uint64) {
	t.Helper()
	for _, at := range p.Shards() {
		state, err := at.Commands.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n += state.Messages
	}
	return n
}

func (s *scattered) work(t *testing.T, p *tallyman.Pool, well bool) (stop func()) {
	t.Helper()
	echo := tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{Body: c.Payload()}, nil
	})
	mux := &tallyman.Mux{}
	mux.Handle("echo", echo)
	mux.Handle("frail", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if !well {
			return tallyman.Result{}, errors.New("it broke")
		}
		return echo(ctx, c)
	}))
	w, err := p.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return pooltest.Run(t, w.Run)
}

func (s *scattered) audit(t *testing.T, p *tallyman.Pool, opts audit.Options) audit.Report {
	t.Helper()
	var shards []audit.Shard
	for _, at := range p.Shards() {
		shards = append(shards, audit.Shard{Commands: at.Commands, Records: at.Records})
	}
	r, err := audit.RunShards(t.Context(), shards, opts)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Balanced {
		t.Errorf("%s: %v", r.Summary(), r.Findings)
	}
	return r
}

// kept fails the test if an id has no record, wherever it lies, or one that does
// not expire as it should.
func (s *scattered) kept(t *testing.T) {
	t.Helper()
	found := map[string]bool{}
	for bucket := range s.js.KeyValueStoreNames(t.Context()).Name() {
		name := strings.TrimPrefix(bucket, "KV_")
		for id := range s.receipts {
			var m *jetstream.RawStreamMsg
			var err error
			pooltest.Await(t, t.Context(), "an answer about "+id, func() bool { // a busy cluster may elect a leader at any time
				var str jetstream.Stream
				if str, err = s.js.Stream(t.Context(), "KV_"+name); err == nil {
					m, err = str.GetLastMsgForSubject(t.Context(), "$KV."+name+"."+id)
				}
				return err == nil || errors.Is(err, jetstream.ErrMsgNotFound)
			})
			if err != nil || m.Header.Get("KV-Operation") != "" {
				continue
			}
			found[id] = true
			if kept := m.Header.Get("Nats-TTL"); (kept == "") != strings.HasPrefix(id, "parked") || len(kept) > len("3600") || kept > "3600" {
				t.Errorf("%s is kept for %q seconds", id, kept)
			}
		}
	}
	if len(found) != len(s.receipts) {
		t.Fatalf("%d of %d ids have a record", len(found), len(s.receipts))
	}
}

// whole checks that a pool has its shards, every receipt as it was, and works.
func (s *scattered) whole(t *testing.T, shards int) {
	t.Helper()
	ctx := t.Context()
	p := pooltest.Open(t, s.nc)
	want := s.settings.WithDefaults()
	if want.Shards = shards; p.Settings().WithDefaults() != want || len(p.Shards()) != shards {
		t.Errorf("got %+v and %d shards in all, want %+v", p.Settings(), len(p.Shards()), want)
	}
	for i, at := range p.Shards() {
		state, err := at.Commands.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if all := state.MaxMsgs * int64(shards); state.MaxMsgs > 0 && (all < 1000 || all > 1000+10) {
			t.Errorf("shard %d may hold %d commands, want its part of 1000", i, state.MaxMsgs)
		}
	}
	if _, err := s.js.Stream(ctx, fmt.Sprintf("main_%d_commands", shards)); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("one more shard: got %v, want none", err)
	}
	for _, at := range p.Shards() {
		// Fencing tokens are revisions, and have to grow.
		if last, err := at.Records.LastRevision(ctx); err != nil || last < s.highest {
			t.Errorf("bucket %s is at revision %d, %v, want at least %d", at.Records.Bucket(), last, err, s.highest)
		}
	}
	for id, want := range s.receipts {
		r, err := p.Find(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if at := r.Trail[len(r.Trail)-1].At; r.State != want.State || string(r.Result) != string(want.Result) || r.Owner != want.Owner || !at.Equal(want.At) || r.Token != want.Token {
			t.Errorf("%s: got %+v, want %+v", id, r, want)
		}
	}
	s.kept(t)
	s.audit(t, p, audit.Options{})
	var desks []*desk.Desk
	for _, at := range p.Shards() {
		desks = append(desks, desk.New(at.Commands, at.Records))
	}
	if n, err := desk.Sharded(desks...).RequeueMany(ctx, desk.Act{By: "ann"}, desk.Bulk{}); err != nil || n != (desk.Counts{Matched: spreadParked, Done: spreadParked}) {
		t.Errorf("requeue: got %+v, %v", n, err)
	}
	stop := s.work(t, p, true)
	defer stop()
	for id, want := range s.receipts {
		kind := "echo"
		if strings.HasPrefix(id, "parked") {
			kind = "frail"
		}
		again, err := p.Submit(ctx, tallyman.Command{ID: id, Kind: kind, Payload: []byte(id)})
		if err != nil || !again.Absorbed {
			t.Errorf("%s again: got %+v, %v, want it absorbed", id, again, err)
		}
		got, err := p.Wait(ctx, id)
		if err != nil || string(got.Result) != id {
			t.Errorf("%s: got %+v, %v, want its result", id, got, err)
		}
		if kind == "echo" && !got.At.Equal(want.At) {
			t.Errorf("%s: the receipt is of %v, want %v: it ran again", id, got.At, want.At)
		}
	}
	pooltest.Await(t, ctx, "empty streams", func() bool { return pending(t, p) == 0 })
	stop()
	if r := s.audit(t, p, audit.Options{Seal: true}); r.Completed != spreadDone+spreadParked || !r.Closed() {
		t.Errorf("got %d completed, sealed through %d of %d", r.Completed, r.SealedThrough, r.LastSeq)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

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
			for _, at := range []string{"reshard-copied", "reshard-commit"} {
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
	// A second, other record of the same id is for a person to judge.
	other := *s.record(t, p, "parked-14")
	other.ID, other.Result = "done-0", []byte("other")
	e, err = wrong.Records.Read(ctx, "done-0")
	if err != nil {
		t.Fatal(err)
	}
	other.Revision = e.Revision
	if _, err := wrong.Records.WriteWait(ctx, "done-0", &other); err != nil {
		t.Fatal(err)
	}
	if _, err := tallyman.Reshard(ctx, s.nc, "main", 3, "ann"); !errors.Is(err, kvstate.ErrStale) || !strings.Contains(err.Error(), "find out which of the two is right") {
		t.Errorf("two records: got %v", err)
	}
	if e, err = wrong.Records.Read(ctx, "done-0"); err != nil {
		t.Fatal(err)
	}
	if err := wrong.Records.GiveUp(ctx, "done-0", e.Revision); err != nil {
		t.Fatal(err)
	}
	if done, err := tallyman.Reshard(ctx, s.nc, "main", 3, "ann"); err != nil || !done.Resumed {
		t.Errorf("once that is clear: got %+v, %v", done, err)
	}
	s.audit(t, p, audit.Options{})
}

func (s *scattered) record(t *testing.T, p *tallyman.Pool, id string) *kvstate.Record {
	t.Helper()
	r, err := p.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
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
	refused(3, tallyman.ErrBusy, "holds 1 commands")
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
