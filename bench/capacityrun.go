package main

import (
	"context"
	"fmt"
)

// pointRow is what was measured at one point.
type pointRow struct {
	Point  string   `json:"point"`
	N      int      `json:"n"`
	Rounds []sample `json:"rounds,omitempty"`
	Assets string   `json:"assets,omitempty"` // that the pool was found to have
	Unable string   `json:"unable,omitempty"` // why it was not measured
	point  point
}

// cost is the median of the rounds.
func (r pointRow) cost() cost {
	return costOf(func(key string) float64 { return median(valuesOf(key, r.Rounds)) })
}

// only returns what was measured in one round.
func (r pointRow) only(round int) pointRow {
	r.Rounds = r.Rounds[round : round+1]
	return r
}

// only returns what was measured in one round.
func (r capacityResults) only(round int) capacityResults {
	points := make([]pointRow, len(r.Points))
	for i, row := range r.Points {
		if points[i] = row; len(row.Rounds) > 0 {
			points[i] = row.only(round)
		}
	}
	r.Points = points
	return r
}

// needRow is what the model says of one size.
type needRow struct {
	Replicas int `json:"replicas"`
	need
}

// capacityResults is everything that --capacity --json prints.
type capacityResults struct {
	conditions
	Points  []pointRow  `json:"points"`
	Assumed assumptions `json:"assumed"`
	Needs   []needRow   `json:"needs"`
}

// measureCapacity measures every point in every round and asks the model.
func measureCapacity(ctx context.Context, l load, with layout, progress func(string)) (capacityResults, error) {
	syncing := with
	syncing.sync = true // the disk matters to some points
	out := capacityResults{conditions: newConditions(l, syncing), Assumed: defaultAssumptions()}
	for _, p := range points() {
		if l.Scenario == "" || l.Scenario == p.name {
			out.Points = append(out.Points, pointRow{Point: p.name, Unable: p.unable(), point: p})
		}
	}
	for round := range l.Rounds {
		for i := range out.Points {
			row := &out.Points[i]
			if row.Unable != "" {
				continue
			}
			progress(fmt.Sprintf("round %d of %d: %s", round+1, l.Rounds, row.Point))
			s := sample{}
			server, err := measurePoint(ctx, l, row.point, with, s)
			if err != nil {
				return out, fmt.Errorf("%s: %w", row.Point, err)
			}
			out.ran(onJetStream{natsContestant: ours{}, layout: layout{replicas: row.point.replicas, sync: row.point.sync}}, server)
			row.Assets, row.Rounds = server.Assets, append(row.Rounds, s)
		}
	}
	out.done()
	for _, replicas := range []int{1, clusterSize} {
		known, ok := out.known(replicas)
		if !ok {
			continue
		}
		for _, rate := range []float64{1e5, 1e6, 1e7} {
			out.Needs = append(out.Needs, needRow{replicas, out.Assumed.needs(rate, known.at(payloadSize), replicas)})
		}
	}
	return out, nil
}

// known returns what the model knows of servers with so many replicas; not ok
// if it was not measured.
func (r capacityResults) known(replicas int) (l line, ok bool) {
	var small, large bool
	for _, row := range r.Points {
		if p := row.point; p.checks || p.sync || p.replicas != replicas || len(row.Rounds) == 0 {
			continue
		}
		switch row.point.payload {
		case payloadSize:
			l.small, small = row.cost(), true
		case largePayload:
			l.large, large = row.cost(), true
		}
	}
	return l, small && large
}
