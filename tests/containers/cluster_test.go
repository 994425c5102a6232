//go:build containers

package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// streamInfo is the part of "nats stream info --json" that is looked at.
type streamInfo struct {
	State struct {
		Messages uint64 `json:"messages"`
	} `json:"state"`
	Cluster struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Offline bool   `json:"offline"`
		} `json:"replicas"`
	} `json:"cluster"`
}

// stream asks the stock nats CLI about a stream.
func (p *project) stream(ctx context.Context, name string) (streamInfo, error) {
	out, err := p.run(ctx, nil, "nats", "stream", "info", name, "--json")
	if err != nil {
		return streamInfo{}, err
	}
	var info streamInfo
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return streamInfo{}, fmt.Errorf("stream info of %s: %w\n%s", name, err, out)
	}
	if info.Cluster.Leader == "" {
		return streamInfo{}, fmt.Errorf("stream %s has no leader", name)
	}
	return info, nil
}

// leader returns the service name of the node that leads a stream.
func (p *project) leader(t *testing.T, stream string) string {
	t.Helper()
	var node string
	eventually(t, time.Minute, "stream "+stream+" has a leader", func(ctx context.Context) error {
		info, err := p.stream(ctx, stream)
		node = info.Cluster.Leader
		return err
	})
	return node
}

// The cluster by itself, seen through the stock nats CLI, so that a failure of
// the pool's test can be told from a failure of what it stands on.
func TestCompose_Cluster(t *testing.T) {
	p := newProject(t)
	nodes := []string{"n1", "n2", "n3"}
	p.up(t, nodes...)
	for _, node := range nodes {
		awaitHealthy(t, p.container(t, node))
	}
	p.mustRun(t, nil, "nats", "stream", "add", "probe", "--subjects", "probe.>", "--replicas", "3", "--storage", "file", "--defaults")
	publish := func(ctx context.Context, body string) error {
		_, err := p.run(ctx, nil, "nats", "request", "--raw", "probe.a", body)
		return err
	}
	if err := publish(t.Context(), "all nodes are up"); err != nil {
		t.Fatalf("publish: %v", err)
	}

	victim := p.leader(t, "probe")
	id := p.container(t, victim)
	docker(t, "kill", id)

	// A new leader among the two that are left takes a write.
	eventually(t, time.Minute, "publish without the old leader", func(ctx context.Context) error {
		info, err := p.stream(ctx, "probe")
		if err != nil {
			return err
		}
		if info.Cluster.Leader == victim {
			return fmt.Errorf("%s is still named as leader", victim)
		}
		return publish(ctx, "one node is down")
	})

	// The one that was killed finds its volume again and catches up.
	docker(t, "start", id)
	awaitHealthy(t, id)
	eventually(t, time.Minute, "three replicas are current", func(ctx context.Context) error {
		info, err := p.stream(ctx, "probe")
		if err != nil {
			return err
		}
		var behind []string
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Offline {
				behind = append(behind, r.Name)
			}
		}
		if got := len(info.Cluster.Replicas); got != 2 || len(behind) > 0 {
			return fmt.Errorf("got %d followers, want 2; behind: %s", got, strings.Join(behind, ", "))
		}
		// At least two: a publish that was confirmed late is repeated above.
		if info.State.Messages < 2 {
			return fmt.Errorf("got %d messages, want at least 2", info.State.Messages)
		}
		return nil
	})
}
