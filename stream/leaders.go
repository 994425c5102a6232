package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// group is one replicated asset, with those that may lead it.
type group struct {
	api     string // subject of the request to give up the lead
	leader  string
	members []string // that are up to date, the leader among them
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

// leadTime bounds one request to pass on a lead.
const leadTime = 2 * time.Second

// Spread evens out which servers lead the given streams, and which their
// consumers of each queue. Servers choose at random who leads what is replicated, and those
// who lead do most of the work. The lead passes on without loss, and within
// milliseconds. What has no replicas stays where it is. An error says which
// lead may have remained where it was, which harms nothing.
func Spread(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, streams []string) error {
	var own []group
	queues := map[string][]group{}
	for _, name := range streams {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return fmt.Errorf("stream: spread: %q: %w", name, err)
		}
		if g, ok := groupOf(s.CachedInfo().Cluster); ok {
			g.api = "$JS.API.STREAM.LEADER.STEPDOWN." + name
			own = append(own, g)
		}
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			if g, ok := groupOf(info.Cluster); ok && info.Config.Durable != "" {
				g.api = "$JS.API.CONSUMER.LEADER.STEPDOWN." + name + "." + info.Name
				queues[info.Name] = append(queues[info.Name], g)
			}
		}
		if err := list.Err(); err != nil {
			return fmt.Errorf("stream: spread: consumers of %q: %w", name, err)
		}
	}
	if err := pass(ctx, nc, own); err != nil {
		return err
	}
	for _, of := range queues {
		if err := pass(ctx, nc, of); err != nil {
			return err
		}
	}
	return nil
}

func groupOf(c *jetstream.ClusterInfo) (g group, ok bool) {
	if c == nil || c.Leader == "" {
		return group{}, false
	}
	g = group{leader: c.Leader, members: []string{c.Leader}}
	for _, r := range c.Replicas {
		if r.Current && !r.Offline {
			g.members = append(g.members, r.Name)
		}
	}
	return g, len(g.members) > 1
}

// pass asks leaders to pass on their lead as moves wants it.
func pass(ctx context.Context, nc *nats.Conn, groups []group) error {
	for _, m := range moves(groups) {
		api := groups[m.of].api
		body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": m.to}})
		if err != nil {
			return fmt.Errorf("stream: spread: %w", err)
		}
		ask, cancel := context.WithTimeout(ctx, leadTime)
		reply, err := nc.RequestWithContext(ask, api, body)
		cancel()
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
	}
	return nil
}
