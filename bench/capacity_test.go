package main

import (
	"math"
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	t.Parallel()
	l := line{small: cost{Producer: 10, Up: 100}, large: cost{Producer: 10, Up: 100 + largePayload - payloadSize}}
	for payload, want := range map[int]float64{payloadSize: 100, largePayload: 100 + largePayload - payloadSize, payloadSize + 1: 101, 0: 100 - payloadSize} {
		got := l.at(payload)
		if math.Abs(got.Up-want) > 1e-9 || got.Producer != 10 {
			t.Errorf("at %d: %v bytes and %v us, want %v and 10", payload, got.Up, got.Producer, want)
		}
	}
}

func TestCost_Rates(t *testing.T) {
	t.Parallel()
	c := cost{Producer: 10, Submit: 10, Worker: 30, Work: 50}
	if got, want := c.submitRate(2), 100_000.0; got != want {
		t.Errorf("submissions = %v, want %v", got, want)
	}
	if got, want := c.workRate(2), 25_000.0; got != want {
		t.Errorf("completions = %v, want %v", got, want)
	}
}

func TestNeeds(t *testing.T) {
	t.Parallel()
	a := assumptions{Cores: 10, NIC: 10, Disk: 100, Used: 0.5}
	small := cost{Producer: 10, Worker: 20, Submit: 20, Work: 30, Busiest: 40, Up: 1000, Down: 500, Routed: 250, Written: 1, Pending: 100, Receipt: 200}
	for name, tt := range map[string]struct {
		rate float64
		with func(*cost)
		want need
	}{
		"never fewer servers than replicas": {1000, nil, need{
			ClientCores: 0.06, ServerCores: 0.1, Servers: 3, FirstLimit: "replicas", Shards: 1, Pools: 1,
			NIC: 0.01, Disk: 0.001, Day: 0.05184, Backlog: 1.08,
		}},
		"CPU decides": {1e6, nil, need{
			ClientCores: 60, ServerCores: 100, Servers: 10, FirstLimit: "CPU", Shards: 80, Pools: 1,
			NIC: 10, Disk: 1, Day: 51.84, Backlog: 1080,
		}},
		"the network decides": {1e6, func(c *cost) { c.Down = 99_750 }, need{
			ClientCores: 60, ServerCores: 100, Servers: 160, FirstLimit: "network", Shards: 80, Pools: 1,
			NIC: 800, Disk: 1, Day: 51.84, Backlog: 1080,
		}},
		"the disk decides": {1e6, func(c *cost) { c.Written = 5000 }, need{
			ClientCores: 60, ServerCores: 100, Servers: 100, FirstLimit: "disk", Shards: 80, Pools: 1,
			NIC: 10, Disk: 5000, Day: 51.84, Backlog: 1080,
		}},
		"more shards than a pool has": {1e7, nil, need{
			ClientCores: 600, ServerCores: 1000, Servers: 100, FirstLimit: "CPU", Shards: 800, Pools: 4,
			NIC: 100, Disk: 10, Day: 518.4, Backlog: 10_800,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := small
			if tt.with != nil {
				tt.with(&c)
			}
			got := a.needs(tt.rate, c, 3)
			want := tt.want
			for _, pair := range [][2]*float64{
				{&got.ClientCores, &want.ClientCores}, {&got.ServerCores, &want.ServerCores}, {&got.NIC, &want.NIC},
				{&got.Disk, &want.Disk}, {&got.Day, &want.Day}, {&got.Backlog, &want.Backlog},
			} {
				if math.Abs(*pair[0]-*pair[1]) < 1e-9 {
					*pair[0] = *pair[1] // but for rounding
				}
			}
			want.Rate = tt.rate
			if got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestCapacityResults(t *testing.T) {
	t.Parallel()
	measured := func(p point, scale float64) pointRow {
		s, slower := sample{}, sample{}
		for _, key := range []string{"producer_cpu", "worker_cpu", "server_cpu", "server_submit_cpu", "server_work_cpu", "busiest_cpu",
			"up", "down", "routed", "written", "pending_bytes", "receipt_bytes", "submit_rate", "work_rate", "flushes"} {
			s[key], slower[key] = 10*scale, 20*scale
		}
		return pointRow{Point: p.name, Rounds: []sample{s, slower}, Assets: "1 command stream", point: p}
	}
	var r capacityResults
	for _, p := range points() {
		switch {
		case p.sync && p.replicas > 1:
			r.Points = append(r.Points, pointRow{Point: p.name, Unable: "no strace", point: p})
		case p.checks:
			r.Points = append(r.Points, measured(p, 2))
		default:
			r.Points = append(r.Points, measured(p, 1))
		}
	}
	r.Machine.Cores, r.Assumed = 2, defaultAssumptions()
	known, ok := r.known(clusterSize)
	if !ok {
		t.Fatal("four points were measured and the model knows nothing of three replicas")
	}
	r.Needs = append(r.Needs, needRow{clusterSize, r.Assumed.needs(1e6, known.at(payloadSize), clusterSize)})
	var b strings.Builder
	if err := r.writeMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"- R3, power-safe: not measured, no strace\n",
		"| R1, power-safe | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 | 15.0 |\n",
		"| R1, 4 shards | 1 command stream | producer, us | 15.0 | 30.0 | 0.50 (0.50–0.50) |\n",
		"|  |  | CPU of all, us | 60.0 | 120 | 0.50 (0.50–0.50) |\n",
		"| 1,000,000 | 3 | 50.0 | 50.0 | 4 | CPU | 25 | 1 | 0.24 | 15.0 | 3.89 | 162 |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report\n%swants the line %s", &b, want)
		}
	}
}
