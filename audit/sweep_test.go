package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// TestRun_WhatAwaitsTheSweep guards against a command that is stranded being
// called pending, because a copy lies in the stream that no worker gets any more.
func TestRun_WhatAwaitsTheSweep(t *testing.T) {
	t.Parallel()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Removal: tallyman.RemovalSweep}, tallyman.Topology{})
	ctx := t.Context()
	look := func() audit.Report {
		t.Helper()
		report, err := audit.Run(ctx, p.Commands(), p.Records(), audit.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	c := tallyman.Command{ID: "a", Kind: "k", Payload: []byte("x")}
	if _, err := p.Submit(ctx, c); err != nil {
		t.Fatal(err)
	}
	cons, err := pooltest.JetStream(t, nc).Consumer(ctx, "main_commands", "default")
	if err != nil {
		t.Fatal(err)
	}
	m, err := cons.Next(jetstream.FetchMaxWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	env, err := dedupe.Identify(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &kvstate.Record{ID: "a", Kind: "k", Queue: "default", Digest: env.Digest}
	become := func(state kvstate.State) {
		t.Helper()
		next, err := r.Advance(state, "w", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		next.Seqs, next.Command = []uint64{1}, &env.Command
		if next.Revision, err = p.Records().WriteWait(ctx, env.Token, next); err != nil {
			t.Fatal(err)
		}
		r = next
	}
	become(kvstate.Parked)
	if err := m.DoubleAck(ctx); err != nil {
		t.Fatal(err)
	}
	if got := look(); !got.Balanced || got.Pending != 0 || got.Parked != 1 {
		t.Errorf("parked, and still in the stream: got %+v, want balanced books with nothing pending", got)
	}
	become(kvstate.Requeued) // and the requeue is cut off before it is published
	if got := look(); got.Balanced || !slices.Equal(got.Stranded, []string{"a"}) {
		t.Errorf("requeued and not published: got %+v, want it stranded", got)
	}
	out, err := desk.New(p.Commands(), p.Records()).Requeue(ctx, desk.Act{By: "ann"}, "a")
	if err != nil || out.Sequence != 2 {
		t.Fatalf("requeue once more: got %+v, %v, want sequence 2", out, err)
	}
	if got := look(); !got.Balanced || got.Pending != 1 {
		t.Errorf("requeued and published: got %+v, want balanced books with one pending", got)
	}
}
