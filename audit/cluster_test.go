package audit_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

func TestRun_OnThreeReplicas(t *testing.T) {
	t.Parallel()
	nc := pooltest.Connect(t, pooltest.Cluster(t).URL())
	for _, topology := range []tallyman.Topology{{Replicas: 3}, {}} {
		pooltest.Make(t, pooltest.Context(t), nc, tallyman.Settings{}, topology)
	}
	p, js := pooltest.Open(t, nc), pooltest.JetStream(t, nc)
	for _, name := range []string{"main_commands", "KV_main"} {
		str, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := str.CachedInfo().Config.Replicas; got != 3 {
			t.Errorf("%s: got %d replicas after init was repeated, want 3", name, got)
		}
	}
	s := &scene{p, nc, js}
	s.submit(t, 1, 20)
	s.work(t, 20)
	s.submit(t, 21, 25)
	// What the stream refuses must leave no gap in its sequences.
	for range 5 {
		if _, err := js.Publish(t.Context(), p.Commands().Subject("default", "echo", "c-21"), nil, jetstream.WithMsgID(nuid.Next())); err == nil {
			t.Error("a second copy was accepted")
		}
	}
	s.submit(t, 26, 26)
	got := s.audit(t, audit.Options{})
	if !got.Balanced || got.Completed != 19 || got.Parked != 1 || got.Pending != 6 || got.LastSeq != 26 {
		t.Errorf("got %+v, want 19 completed, 1 parked, 6 pending of 26, balanced", got)
	}
	// The leader moves; the seal is of the same stream all the same.
	for range 2 {
		if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 20 {
			t.Errorf("got %+v, want sealed through 20", got)
		}
		eventually(t, "the leader to step down", func() bool {
			_, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.main_commands", nil, 5*time.Second)
			return err == nil
		})
		eventually(t, "a leader", func() bool {
			_, err := p.Commands().State(t.Context())
			return err == nil
		})
	}
	if got := s.audit(t, audit.Options{}); !got.Balanced || got.FirstSeq != 21 {
		t.Errorf("under another leader: got %+v, want it balanced from 21 on", got)
	}
}
