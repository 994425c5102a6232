package audit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestRunShards(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Shards: 3}, tallyman.Topology{})
	var shards []audit.Shard
	var ids []string // by shard; all pending
	for i, at := range p.Shards() {
		shards = append(shards, audit.Shard{Commands: at.Commands, Records: at.Records})
		for n := 0; ; n++ {
			if id := fmt.Sprintf("c-%d", n); p.ShardOf(command.Token(id)).Index == i {
				ids = append(ids, id)
				break
			}
		}
		if _, err := p.Submit(ctx, tallyman.Command{ID: ids[i], Kind: "echo"}); err != nil {
			t.Fatal(err)
		}
	}
	// One more of shard 1 that nobody has carried there yet.
	hand := "by-hand-0"
	for n := 1; p.ShardOf(command.Token(hand)).Index != 1; n++ {
		hand = fmt.Sprintf("by-hand-%d", n)
	}
	if _, err := pooltest.JetStream(t, nc).Publish(ctx, p.Commands().Subject("default", "echo", command.Token(hand)), nil); err != nil {
		t.Fatal(err)
	}
	run := func(opts audit.Options) audit.Report {
		t.Helper()
		r, err := audit.RunShards(ctx, shards, opts)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	list := func(more ...string) iter.Seq2[audit.Accepted, error] {
		return func(yield func(audit.Accepted, error) bool) {
			for _, id := range append(append([]string{hand}, ids...), more...) {
				if !yield(audit.Accepted{ID: id}, nil) {
					return
				}
			}
		}
	}
	r := run(audit.Options{Against: list(), Seal: true})
	if !r.Balanced || r.LastSeq != 4 || r.Pending != 4 || r.Compared != 4 || r.FirstSeq != 1 || r.Closed() || len(r.Shards) != 3 || r.Shard != nil || *r.Shards[2].Shard != 2 {
		t.Errorf("got %+v", r)
	}
	if got := r.Summary(); !strings.Contains(got, "all 4 sequences are accounted for in 3 shards, and all 4 ids") {
		t.Errorf("got %q", got)
	}

	// A list is compared in the shard of each id; what is missing is told by shard.
	if err := shards[2].Commands.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r = run(audit.Options{Against: list("never"), Seal: true})
	at := p.ShardOf("never").Index
	missing := map[string]int{}
	for _, m := range r.MissingIDs {
		missing[m.ID] = *m.Shard
	}
	if r.Balanced || r.MissingCount != 1 || len(missing) != 2 || missing["never"] != at || missing[ids[2]] != 2 {
		t.Errorf("got %+v", r)
	}
	for _, f := range r.Findings {
		if *f.Shard != 2 || !strings.HasPrefix(f.String(), "missing in shard 2: sequence 1") {
			t.Errorf("got %v", f)
		}
	}
	if got := r.Summary(); !strings.Contains(got, "shard 2: 1 missing") || strings.Contains(got, "shard 0: ") && at != 0 {
		t.Errorf("got %q", got)
	}

	// Each shard has a seal of its own, and seals without the others.
	done, err := (&kvstate.Record{ID: ids[1], Kind: "echo", Seqs: []uint64{1}}).Advance(kvstate.Completed, "worker-1", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shards[1].Records.WriteWait(ctx, command.Token(ids[1]), done); err != nil {
		t.Fatal(err)
	}
	if err := shards[1].Commands.Remove(ctx, 1); err != nil {
		t.Fatal(err)
	}
	r = run(audit.Options{Seal: true})
	if r.SealedThrough != 1 || r.Shards[1].SealedThrough != 1 || !r.Shards[1].Closed() || r.Closed() {
		t.Errorf("got %+v", r)
	}
	for i, want := range []bool{false, true, false} {
		if e, err := shards[i].Records.Read(ctx, kvstate.KeyAudit); err != nil || (e.Raw != nil) != want {
			t.Errorf("seal of shard %d: got %q, %v, want one: %v", i, e.Raw, err, want)
		}
	}
	if _, err := audit.RunShards(ctx, shards, audit.Options{Against: func(yield func(audit.Accepted, error) bool) {
		yield(audit.Accepted{}, errors.New("torn"))
	}}); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v, want what the list yields", err)
	}
}

// The report of a pool that is not sharded says nothing of shards.
func TestReport_WithoutShards(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.submit(t, 1, 2)
	if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(s.audit(t, audit.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(body), "shard") || strings.Contains(string(body), "misplaced") || !strings.Contains(string(body), `"missing":[1]`) {
		t.Errorf("got %s", body)
	}
}
