package tallyman_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// flip returns data with one to eight of its bits turned over.
func flip(rng *rand.Rand, data []byte) []byte {
	out := slices.Clone(data)
	for range 1 + rng.IntN(8) {
		out[rng.IntN(len(out))] ^= 1 << rng.IntN(8)
	}
	if slices.Equal(out, data) { // turned over and back
		out[0] ^= 1
	}
	return out
}

// store puts a record into the bucket with the headers of a real one, its bits
// flipped if rng is not nil, over whatever is there; over its revision alone if it
// has one.
func (r *rig) store(t *testing.T, rng *rand.Rand, rec kvstate.Record) []byte {
	t.Helper()
	data, err := kvstate.Encode(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if rng != nil {
		data = flip(rng, data)
	}
	m := nats.NewMsg(r.Records().Subject(command.Token(rec.ID)))
	m.Data = data
	m.Header.Set(command.HeaderState, string(rec.State))
	m.Header.Set(command.HeaderKind, rec.Kind)
	m.Header.Set(command.HeaderAttempt, strconv.Itoa(rec.Attempt))
	m.Header.Set(command.HeaderOwner, rec.Owner)
	if rec.State.Final() {
		m.Header.Set(jetstream.MsgTTLHeader, "600")
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	if rec.Revision > 0 {
		m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(rec.Revision, 10))
	}
	_, err = r.js.PublishMsg(r.ctx, m)
	if err != nil && rec.Revision > 0 {
		return nil // a worker has written meanwhile
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ledger is what a handler did, by id.
type ledger struct {
	mu    sync.Mutex
	began map[string][]uint64 // offsets at which it began
	asked map[string]int      // how often the outcome of an intent was asked for
	wrong []string
}

func (l *ledger) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// A record whose bits have flipped is never acted on, whatever it was: a claim
// falls back to the whole revision before it, all else is parked with the
// command, and the audit names it before.
func TestWorker_FlippedBits(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	r := newRig(t, brisk, tallyman.Topology{})
	const each, none = 5, ^uint64(0)
	cases := []struct {
		name   string
		state  kvstate.State
		before string // the revision below: "" for none, whole or damaged
		begin  uint64 // offset at which it goes on; none if it must not
	}{
		{"claimed-first", kvstate.Claimed, "", none},
		{"claimed-over-whole", kvstate.Claimed, "whole", 3},
		{"claimed-over-damaged", kvstate.Claimed, "damaged", none},
		{"prepared", kvstate.Prepared, "", none},
		{"prepared-over-whole", kvstate.Prepared, "whole", none},
		{"waiting", kvstate.Waiting, "", none},
		{"waiting-over-whole", kvstate.Waiting, "whole", none},
		{"parked", kvstate.Parked, "", none},
		{"parked-over-whole", kvstate.Parked, "whole", none},
		{"requeued", kvstate.Requeued, "", none},
		{"requeued-over-whole", kvstate.Requeued, "whole", none},
		{"completed", kvstate.Completed, "", none},
		{"cancelled", kvstate.Cancelled, "whole", none},
		{"discarded", kvstate.Discarded, "whole", none},
	}
	want := map[string]uint64{}
	damaged := map[string][]byte{}
	for _, c := range cases {
		for i := range each {
			id := fmt.Sprintf("%s-%d", c.name, i)
			cmd := tallyman.Command{ID: id, Kind: "steps", Queue: "default", Payload: []byte(id)}
			sub := r.submit(t, cmd)
			rec := kvstate.Record{
				ID: id, Kind: cmd.Kind, Queue: cmd.Queue, Digest: dedupe.Digest(cmd.Kind, cmd.Payload), State: kvstate.Claimed,
				Attempt: 1, Owner: "gone", Seqs: []uint64{sub.Sequence}, Offset: 3, Checkpoint: []byte("s3"),
			}
			switch c.before {
			case "whole":
				r.store(t, nil, rec)
			case "damaged":
				r.store(t, rng, rec)
			}
			rec.Offset, rec.Checkpoint, rec.State = 7, []byte("s7"), c.state
			switch c.state {
			case kvstate.Prepared:
				rec.Intent = []byte("pay")
			case kvstate.Waiting:
				rec.Error, rec.NextAt = "broken", time.Now()
			case kvstate.Parked, kvstate.Requeued, kvstate.Discarded:
				rec.Reason, rec.Command = kvstate.ReasonRejected, &cmd
			case kvstate.Completed:
				rec.Result = []byte("done")
			}
			damaged[id], want[id] = r.store(t, rng, rec), c.begin
		}
	}

	report, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{Seal: true})
	if err != nil {
		t.Fatal(err)
	}
	if named := slices.Sorted(slices.Values(report.Corrupt)); report.Balanced || report.SealedThrough != 0 || !slices.Equal(named, slices.Sorted(maps.Keys(damaged))) {
		t.Errorf("before: the audit names %v as damaged, sealed through %d; want all %d and nothing sealed", named, report.SealedThrough, len(damaged))
	}
	for _, f := range report.Findings {
		if f.What != audit.FindingCorrupt || damaged[f.ID] == nil || !strings.Contains(f.Cause, "is damaged") || f.Seq == 0 {
			t.Errorf("before: got finding %+v, want damaged records alone, each with its sequence", f)
		}
	}

	did := ledger{began: map[string][]uint64{}, asked: map[string]int{}}
	var seen journal
	start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: route(tallyman.Route{
		Kind: "steps",
		Handler: tallyman.HandlerFunc(func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			did.note(func() {
				did.began[c.ID()] = append(did.began[c.ID()], c.Offset())
				if got, want := string(c.Checkpoint()), fmt.Sprintf("s%d", c.Offset()); got != want {
					did.wrong = append(did.wrong, fmt.Sprintf("%s: checkpoint %q at offset %d", c.ID(), got, c.Offset()))
				}
			})
			return tallyman.Result{Body: []byte("done")}, nil
		}),
		Confirm: func(_ context.Context, c *tallyman.Claim, _ []byte) (tallyman.Finding, tallyman.Result, error) {
			did.note(func() { did.asked[c.ID()]++ })
			return tallyman.NotDone, tallyman.Result{}, nil
		},
	})})
	check := func(when string) {
		t.Helper()
		r.emptied(t)
		for id, begin := range want {
			got := r.record(t, id, func(*kvstate.Record) bool { return true })
			did.note(func() {
				switch {
				case begin == none && (got.State != kvstate.Parked || got.Reason != kvstate.ReasonCorrupt || len(did.began[id]) > 0 || did.asked[id] > 0):
					t.Errorf("%s: %s is %s %s after runs at %v and %d questions; want it parked as corrupt, and nothing done", when, id, got.State, got.Reason, did.began[id], did.asked[id])
				case begin == none && (got.Command == nil || string(got.Command.Payload) != id):
					t.Errorf("%s: %s is parked without its command", when, id)
				case begin != none && (got.State != kvstate.Completed || !slices.Equal(did.began[id], []uint64{begin})):
					t.Errorf("%s: %s is %s after runs at %v; want it completed from %d on", when, id, got.State, did.began[id], begin)
				}
			})
		}
	}
	check("after the delivery")
	for id := range damaged {
		r.publish(t, r.Commands().Subject("default", "steps", command.Token(id)), id)
	}
	check("after another copy")
	did.note(func() {
		for _, w := range did.wrong {
			t.Error(w)
		}
	})
	kept := 0
	if err := r.Records().Scan(r.ctx, func(e kvstate.Entry) error {
		if of, ok := kvstate.CorruptOf(e.Key); ok && slices.Equal(e.Raw, damaged[string(of)]) {
			kept++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if kept != len(damaged) {
		t.Errorf("the bytes of %d damaged records are kept, want all %d", kept, len(damaged))
	}
	report, err = audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{Seal: true})
	if err != nil || !report.Balanced || report.SealedThrough != report.LastSeq {
		t.Errorf("at the end: got %+v, %v; want balanced books, all sealed", report, err)
	}
}

// Bits flip under workers at work. No checkpoint that is not what was saved is
// ever seen, no command is lost, and what is damaged for good is named.
func TestWorker_BitsFlipAtWork(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	settings := brisk
	settings.Lease, settings.MaxAttempts = time.Second, 1000
	r := newRig(t, settings, tallyman.Topology{})
	const n, steps = 30, 6
	did := ledger{}
	turn := make(chan struct{})
	mux := handle("steps", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if at := c.Offset(); at > 0 && string(c.Checkpoint()) != fmt.Sprintf("s%d", at) {
			did.note(func() { did.wrong = append(did.wrong, fmt.Sprintf("%s: %q at offset %d", c.ID(), c.Checkpoint(), at)) })
		}
		for at := c.Offset() + 1; at <= steps; at++ {
			select {
			case <-turn:
			case <-ctx.Done():
				return tallyman.Result{}, context.Cause(ctx)
			}
			if err := c.Progress(ctx, at, fmt.Appendf(nil, "s%d", at)); err != nil {
				return tallyman.Result{}, err
			}
		}
		return tallyman.Result{Body: []byte("done")}, nil
	})
	for range 2 {
		start(t, r.Pool, tallyman.WorkerConfig{Concurrency: n, Mux: mux})
	}
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("c-%d", i))
		r.submit(t, tallyman.Command{ID: ids[i], Kind: "steps"})
	}
	// Between the steps of the handlers, the newest record of some is damaged.
	idle := time.NewTicker(20 * time.Millisecond) // no handler waits for its turn just now
	defer idle.Stop()
	hits := 0
	for range 2 * n {
		for range rng.IntN(6) {
			select {
			case turn <- struct{}{}:
			case <-idle.C:
			}
		}
		id := ids[rng.IntN(n)]
		if e := r.entry(t, command.Token(id)); e.Record != nil && r.store(t, rng, *e.Record) != nil {
			hits++
		}
	}
	close(turn)
	r.emptied(t)
	report, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	receipts := 0
	for _, id := range ids {
		e := r.entry(t, command.Token(id))
		switch {
		case e.Record == nil: // a receipt was hit after its command had been acked
			if e.Label != kvstate.Completed || !slices.Contains(report.Corrupt, id) {
				t.Errorf("%s is left as %q, damaged, and the audit names %v", id, e.Label, report.Corrupt)
			}
		case e.Record.State == kvstate.Completed && string(e.Record.Result) == "done" && e.Record.Offset == steps:
			receipts++
		case e.Record.State != kvstate.Parked || e.Record.Reason != kvstate.ReasonCorrupt:
			t.Errorf("%s ended as %s %s at offset %d", id, e.Record.State, e.Record.Reason, e.Record.Offset)
		}
	}
	if hits < n/4 || receipts == 0 || report.DoubledCount+report.StrandedCount > 0 || report.Pending > 0 {
		t.Errorf("%d records damaged, %d receipts; the audit says %+v", hits, receipts, report)
	}
	did.note(func() {
		for _, w := range did.wrong {
			t.Errorf("acted on what was never saved: %s", w)
		}
	})
}

func TestWorker_DamagedRecord(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		damage int // how many of the newest revisions are damaged
		label  string
		result string
		reason kvstate.Reason
	}{
		{name: "progress falls back to the checkpoint before it", damage: 1, label: "claimed", result: "2 s2"},
		{name: "two damaged ones park", damage: 2, label: "claimed", reason: kvstate.ReasonCorrupt},
		{name: "what may have been an intent parks", damage: 1, label: "prepared", reason: kvstate.ReasonCorrupt},
		{name: "what may have been parked stays parked", damage: 1, label: "parked", reason: kvstate.ReasonCorrupt},
		{name: "bytes without a header park", damage: 1, reason: kvstate.ReasonCorrupt},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, mortal(), tallyman.Topology{})
			saved, die := make(chan struct{}), make(chan struct{})
			kill := doomed(t, r, tallyman.WorkerConfig{Mux: handle("steps", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				for n := uint64(1); n <= 2; n++ {
					if err := c.Progress(ctx, n, fmt.Appendf(nil, "s%d", n)); err != nil {
						return tallyman.Result{}, err
					}
				}
				close(saved)
				<-die
				return tallyman.Result{}, nil
			})})
			r.submit(t, tallyman.Command{ID: "d", Kind: "steps"})
			<-saved
			kill()
			close(die)
			for i := range tt.damage {
				whole := r.entry(t, "d")
				m := nats.NewMsg(r.Records().Subject("d"))
				m.Data = bytes.Clone(whole.Raw)
				m.Data[len(m.Data)/2+i] ^= 4
				if tt.label != "" {
					m.Header.Set(command.HeaderState, tt.label)
				}
				if _, err := r.js.PublishMsg(r.ctx, m); err != nil {
					t.Fatal(err)
				}
			}
			damaged := r.entry(t, "d")
			var seen journal
			start(t, r.Pool, tallyman.WorkerConfig{Observe: seen.observe, Mux: handle("steps", func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				return tallyman.Result{Body: fmt.Appendf(nil, "%d %s", c.Offset(), c.Checkpoint())}, nil
			})})
			got := r.record(t, "d", func(r *kvstate.Record) bool { return r.State.Terminal() })
			if string(got.Result) != tt.result || got.Reason != tt.reason {
				t.Errorf("got result %q, reason %q, error %q; want %q, %q", got.Result, got.Reason, got.Error, tt.result, tt.reason)
			}
			wantFallBacks := 0
			if tt.reason == "" {
				wantFallBacks = 1
			}
			if n := seen.count(tallyman.EventFellBack, "d"); n != wantFallBacks {
				t.Errorf("fell back %d times, want %d", n, wantFallBacks)
			}
			if kept := r.entry(t, kvstate.CorruptKey("d", damaged.Revision)); !bytes.Equal(kept.Raw, damaged.Raw) {
				t.Error("the damaged bytes were not kept")
			}
			r.emptied(t)
		})
	}
}
