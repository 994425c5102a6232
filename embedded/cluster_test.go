package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	c, err := embedded.StartCluster(3, embedded.Config{})
	if err != nil {
		t.Fatalf("StartCluster: %v", err)
	}
	t.Cleanup(c.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	js := open(t, c.URL())
	retry(t, ctx, "create a stream of three replicas", func(ctx context.Context) error {
		_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "three", Subjects: []string{"three"}, Replicas: 3})
		return err
	})
	publish := func(what string, want uint64) {
		t.Helper()
		retry(t, ctx, what, func(ctx context.Context) error {
			// The id makes a repeat after a lost answer harmless.
			ack, err := js.Publish(ctx, "three", nil, jetstream.WithMsgID(what))
			if err == nil && ack.Sequence != want {
				t.Fatalf("%s: got sequence %d, want %d", what, ack.Sequence, want)
			}
			return err
		})
	}
	publish("publish with all nodes", 1)
	c.Kill(0)
	publish("publish with one node killed", 2)
	if err := c.Restart(0); err != nil {
		t.Fatalf("Restart: %v", err)
	}
	c.Kill(1)
	publish("publish with another node killed", 3)
}

func TestStartCluster_Refuses(t *testing.T) {
	t.Parallel()
	if _, err := embedded.StartCluster(0, embedded.Config{}); err == nil {
		t.Error("a cluster of no nodes was started")
	}
}
