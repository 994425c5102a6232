package desk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

func TestKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		n     int
		shard int
		key   command.Token
		ok    bool
	}{
		{"_conflict/7", 1, 0, "_conflict/7", true},
		{"0:_conflict/7", 1, 0, "0:_conflict/7", false},
		{"2:_malformed/7", 3, 2, "_malformed/7", true},
		{"0:_conflict/a/1", 3, 0, "_conflict/a/1", true},
		{"3:_conflict/7", 3, 0, "", false},
		{"-1:_conflict/7", 3, 0, "", false},
		{"02:_conflict/7", 3, 0, "", false},
		{"_conflict/7", 3, 0, "", false},
		{"2:order", 3, 2, "order", false},
		{"2:_absorbed/7", 3, 2, "_absorbed/7", false},
	} {
		shard, key, ok := ParseKey(c.text, c.n)
		if shard != c.shard || key != c.key || ok != c.ok {
			t.Errorf("%q of %d: got %d, %q, %v, want %d, %q, %v", c.text, c.n, shard, key, ok, c.shard, c.key, c.ok)
		}
		if got := Key(shard, c.n, key); ok && got != c.text {
			t.Errorf("%q of %d: spelled %q", c.text, c.n, got)
		}
	}
}

// threefold is a rig whose pool has three shards, with a parked command in each.
func threefold(t *testing.T) (*rig, []string) {
	t.Helper()
	settings := brisk
	settings.Shards = 3
	r := newRig(t, settings)
	var desks []*Desk
	for _, at := range r.Shards() {
		desks = append(desks, New(at.Commands, at.Records))
	}
	r.desk = Sharded(desks...)
	ids := make([]string, 3)
	for i, n := 0, 0; i < 3; n++ {
		if id := fmt.Sprintf("c-%d", n); dedupe.Shard(command.Token(id), 3) == i {
			ids[i] = id
			i++
		}
	}
	stop := r.work(t, newSeen(true))
	for _, id := range ids {
		r.submit(t, tallyman.Command{ID: id, Kind: "frail", Payload: []byte(id)})
	}
	for _, id := range ids {
		if _, err := r.Wait(r.ctx, id); !errors.Is(err, tallyman.ErrParked) {
			t.Fatalf("got %v, want it parked", err)
		}
	}
	r.drained(t)
	stop()
	return r, ids
}

// drained waits until nothing is left in any stream.
func (r *rig) drained(t *testing.T) {
	t.Helper()
	r.await(t, "empty streams", func() bool {
		for _, at := range r.Shards() {
			if st, err := at.Commands.State(r.ctx); err != nil || st.Messages > 0 {
				return false
			}
		}
		return true
	})
}

func (r *rig) closed(t *testing.T) audit.Report {
	t.Helper()
	var shards []audit.Shard
	for _, at := range r.Shards() {
		shards = append(shards, audit.Shard{Commands: at.Commands, Records: at.Records})
	}
	report, err := audit.RunShards(r.ctx, shards, audit.Options{Seal: true})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Balanced {
		t.Errorf("%s: %v", report.Summary(), report.Findings)
	}
	return report
}

func TestSharded_SingleActs(t *testing.T) {
	t.Parallel()
	r, ids := threefold(t)
	for i, id := range ids {
		out, err := r.desk.Requeue(r.ctx, ann, id)
		if err != nil || out.Already {
			t.Fatalf("requeue: got %+v, %v", out, err)
		}
		if there, err := r.Shards()[i].Commands.Get(r.ctx, out.Sequence); err != nil || string(there.Token) != id {
			t.Errorf("%s: got %+v, %v, want it in the stream of shard %d", id, there, err, i)
		}
	}
	if out, err := r.desk.Cancel(r.ctx, ann, ids[2]); err != nil || out.Left != nil {
		t.Errorf("cancel: got %+v, %v", out, err)
	}
	stop := r.work(t, newSeen(false))
	for _, id := range ids[:2] {
		if got, err := r.Wait(r.ctx, id); err != nil || string(got.Result) != id {
			t.Errorf("got %+v, %v, want its result", got, err)
		}
	}
	r.drained(t)
	stop()
	if _, err := r.desk.Resolve(r.ctx, ann, ids[0], Result{}); !errors.Is(err, ErrRefused) {
		t.Errorf("resolve what is completed: got %v, want %v", err, ErrRefused)
	}
	if got := r.closed(t); got.Completed != 2 || got.Cancelled != 1 || !got.Closed() {
		t.Errorf("got %+v", got)
	}
}

func TestSharded_Aside(t *testing.T) {
	t.Parallel()
	r, ids := threefold(t)
	for i, at := range r.Shards() { // the same key in every shard
		rec := &kvstate.Record{ID: ids[i], Kind: "frail", Digest: "d"}
		rec, err := rec.Advance(kvstate.Parked, "worker-1", string(kvstate.ReasonConflict), r.record(t, ids[i]).StoredAt)
		if err != nil {
			t.Fatal(err)
		}
		rec.Reason = kvstate.ReasonConflict
		if _, err := at.Records.WriteWait(r.ctx, kvstate.ConflictKey(9), rec); err != nil {
			t.Fatal(err)
		}
	}
	state := func(shard int) kvstate.State {
		e, err := r.Shards()[shard].Records.Read(r.ctx, kvstate.ConflictKey(9))
		if err != nil {
			t.Fatal(err)
		}
		return e.Record.State
	}
	for _, bare := range []string{"_conflict/9", "7:_conflict/9"} {
		if _, err := r.desk.Discard(r.ctx, ann, bare); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got %v, want %v", bare, err, ErrNotFound)
		}
	}
	if _, err := r.desk.Discard(r.ctx, ann, "_conflict/9"); err == nil || !strings.Contains(err.Error(), "0:_conflict/9") {
		t.Errorf("got %v, want how to spell it", err)
	}
	if _, err := r.desk.Discard(r.ctx, ann, "1:_conflict/9"); err != nil {
		t.Error(err)
	}
	var keys []command.Token
	note := func(i Item, _ Counts) { keys = append(keys, i.Key) }
	got, err := r.desk.DiscardMany(r.ctx, ann, Bulk{IDs: []string{"0:_conflict/9", "1:_conflict/9"}, Each: note})
	if err != nil || got != (Counts{Matched: 2, Done: 1, Already: 1}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if len(keys) != 2 || keys[0] != "0:_conflict/9" || keys[1] != "1:_conflict/9" {
		t.Errorf("told of %v", keys)
	}
	if a, b, c := state(0), state(1), state(2); a != kvstate.Discarded || b != kvstate.Discarded || c != kvstate.Parked {
		t.Errorf("got %s, %s and %s, want the last one parked", a, b, c)
	}
}

func TestSharded_Many(t *testing.T) {
	t.Parallel()
	r, ids := threefold(t)
	var last Counts
	each := func(_ Item, c Counts) { last = c }
	if got, err := r.desk.RequeueMany(r.ctx, ann, Bulk{DryRun: true}); err != nil || got != (Counts{Matched: 3}) {
		t.Errorf("dry run: got %+v, %v", got, err)
	}
	if got, err := r.desk.RequeueMany(r.ctx, ann, Bulk{IDs: []string{ids[2], "nobody"}, Each: each}); err != nil || got != (Counts{Matched: 2, Done: 1, Failed: 1}) || last != got {
		t.Errorf("by id: got %+v, %v, told of %+v at last", got, err, last)
	}
	if got, err := r.desk.RequeueMany(r.ctx, ann, Bulk{Each: each}); err != nil || got != (Counts{Matched: 2, Done: 2}) || last != got {
		t.Errorf("all: got %+v, %v, told of %+v at last", got, err, last)
	}
	stop := r.work(t, newSeen(true))
	for _, id := range ids {
		if _, err := r.Wait(r.ctx, id); !errors.Is(err, tallyman.ErrParked) {
			t.Fatalf("got %v, want it parked again", err)
		}
	}
	r.drained(t)
	stop()
	if got, err := r.desk.DiscardMany(r.ctx, bob, Bulk{Filter: Filter{Kind: "frail"}}); err != nil || got != (Counts{Matched: 3, Done: 3}) {
		t.Errorf("discard: got %+v, %v", got, err)
	}
	if got := r.closed(t); got.Discarded != 3 {
		t.Errorf("got %+v", got)
	}
}

// standing is a command stream whose queues cannot be paused.
type standing struct{ commands }

func (standing) Pause(context.Context, string, time.Time) error { return stream.ErrDenied }

func TestSharded_Pause(t *testing.T) {
	t.Parallel()
	r, _ := threefold(t)
	until, err := r.desk.Pause(r.ctx, ann, "default", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range r.Shards() {
		if q, err := at.Commands.Queue(r.ctx, "default"); err != nil || !q.PausedUntil.Equal(until) {
			t.Errorf("shard %d: got %+v, %v, want it paused until %v", at.Index, q, err, until)
		}
	}
	if p, err := r.desk.LastPause(r.ctx, "default"); err != nil || p.By != "ann" {
		t.Errorf("got %+v, %v", p, err)
	}
	if err := r.desk.Resume(r.ctx, bob, "default"); err != nil {
		t.Fatal(err)
	}
	for _, at := range r.Shards() {
		if q, err := at.Commands.Queue(r.ctx, "default"); err != nil || q.Paused {
			t.Errorf("shard %d: got %+v, %v, want it to deliver", at.Index, q, err)
		}
	}
	// Cut off between two shards it says so, and repeating it completes it.
	cut := *r.desk
	cut.shards = append([]*Desk{}, cut.shards...)
	cut.shards[1] = &Desk{commands: standing{r.Shards()[1].Commands}, records: r.Shards()[1].Records}
	if _, err := cut.Pause(r.ctx, ann, "default", 0); !errors.Is(err, stream.ErrDenied) || !strings.Contains(err.Error(), "shard 1 of 3") {
		t.Errorf("got %v, want the shard in which it failed", err)
	}
	if _, err := r.desk.Pause(r.ctx, ann, "default", 0); err != nil {
		t.Error(err)
	}
}
