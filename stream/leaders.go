package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// group is one replicated asset, with those that may lead it.
type group struct {
	api     string // subject of the request to give up the lead
	leader  string
	members []string // that are up to date, the leader among them
	behind  bool     // another is about to be
}

// move says that the lead of a group is to pass to a server.
type move struct {
	of int
	to string
}

// moves returns what evens out how many groups each server leads: as few as
// possible, until no two servers differ by more than one where it can be helped.
func moves(groups []group) (out []move) {
	leads := map[string]int{}
	leader := make([]string, len(groups))
	for i, g := range groups {
		leader[i] = g.leader
		for _, m := range g.members {
			leads[m] += 0
		}
		leads[g.leader]++
	}
	for range groups { // each needs one move at most
		best := move{of: -1}
		gain := 1
		for i, g := range groups {
			for _, m := range g.members {
				if d := leads[leader[i]] - leads[m]; d > gain {
					best, gain = move{i, m}, d
				}
			}
		}
		if best.of < 0 {
			break
		}
		leads[leader[best.of]]--
		leads[best.to]++
		leader[best.of] = best.to
		out = append(out, best)
	}
	return out
}

const (
	// leadTime bounds one request to pass on a lead.
	leadTime = 2 * time.Second
	// leadPause is how long an election takes, with some to spare.
	leadPause = 250 * time.Millisecond
	// leadRounds is how often Spread looks. The server that is to lead may lose the election.
	leadRounds = 8
)

// Spread evens out which servers lead the given streams, and which their
// consumers of each queue. Servers choose at random who leads what is replicated, and those
// who lead do most of the work. The lead passes on without loss, and within
// milliseconds. What has no replicas stays where it is. An error says what
// may have remained where it was, which harms nothing.
func Spread(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, streams []string) error {
	for round := range leadRounds {
		kinds, err := groups(ctx, js, streams)
		if err != nil {
			return err
		}
		moved := false // or soon may be
		for _, of := range kinds {
			some, err := pass(ctx, nc, of)
			if err != nil && round == leadRounds-1 {
				return err
			}
			moved = moved || some || slices.ContainsFunc(of, func(g group) bool { return g.behind })
		}
		if !moved {
			return nil
		}
		if err := pipeline.Sleep(ctx, leadPause); err != nil {
			return fmt.Errorf("stream: spread: %w", err)
		}
	}
	return nil
}

// groups returns what of the streams is replicated: the streams, then their
// consumers by queue.
func groups(ctx context.Context, js jetstream.JetStream, streams []string) (kinds map[string][]group, err error) {
	kinds = map[string][]group{}
	for _, name := range streams {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("stream: spread: %q: %w", name, err)
		}
		c := s.CachedInfo().Cluster
		if c == nil || len(c.Replicas) == 0 {
			continue // what has no replicas stays where it is
		}
		if g, ok := groupOf(c); ok {
			g.api = "$JS.API.STREAM.LEADER.STEPDOWN." + name
			kinds[""] = append(kinds[""], g)
		}
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			if g, ok := groupOf(info.Cluster); ok && info.Config.Durable != "" {
				g.api = "$JS.API.CONSUMER.LEADER.STEPDOWN." + name + "." + info.Name
				kinds[info.Name] = append(kinds[info.Name], g)
			}
		}
		if err := list.Err(); err != nil {
			return nil, fmt.Errorf("stream: spread: consumers of %q: %w", name, err)
		}
	}
	return kinds, nil
}

func groupOf(c *jetstream.ClusterInfo) (g group, ok bool) {
	if c == nil || c.Leader == "" {
		return group{}, false
	}
	g = group{leader: c.Leader, members: []string{c.Leader}}
	for _, r := range c.Replicas {
		switch {
		case r.Offline:
		case r.Current:
			g.members = append(g.members, r.Name)
		default:
			g.behind = true
		}
	}
	return g, len(c.Replicas) > 0
}

// pass asks leaders to pass on their lead as moves wants it, and reports
// whether there was anything to move.
func pass(ctx context.Context, nc *nats.Conn, groups []group) (moved bool, err error) {
	for _, m := range moves(groups) {
		moved = true
		err = errors.Join(err, ask(ctx, nc, groups[m.of].api, m.to))
	}
	return moved, err
}

// ask asks a leader to let another server lead.
func ask(ctx context.Context, nc *nats.Conn, api, to string) error {
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": to}})
	if err != nil {
		return fmt.Errorf("stream: spread: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, leadTime)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, api, body)
	if err != nil {
		return fmt.Errorf("stream: spread: %s: %w", api, err)
	}
	var got struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &got); err != nil {
		return fmt.Errorf("stream: spread: %s: %w", api, err)
	}
	if got.Error != nil {
		return fmt.Errorf("stream: spread: %s: the server says: %s", api, got.Error.Description)
	}
	return nil
}
