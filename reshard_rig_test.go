package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
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

func (s *scattered) record(t *testing.T, p *tallyman.Pool, id string) *kvstate.Record {
	t.Helper()
	r, err := p.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
