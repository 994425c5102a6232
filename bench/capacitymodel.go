package main

import (
	"math"

	"github.com/tallyman-go/tallyman"
)

// cost is what one command takes.
type cost struct {
	Producer float64 `json:"producer_us"` // CPU of all producers
	Worker   float64 `json:"worker_us"`   // CPU of all workers, without what handlers do
	Submit   float64 `json:"submit_us"`   // CPU of all servers, up to the acceptance
	Work     float64 `json:"work_us"`     // CPU of all servers, from there to the ack
	Busiest  float64 `json:"busiest_us"`  // CPU of the server that had most to do, submit and work
	Up       float64 `json:"up"`          // bytes from the clients to the servers
	Down     float64 `json:"down"`        // bytes from the servers to the clients
	Routed   float64 `json:"routed"`      // bytes between the servers
	Written  float64 `json:"written"`     // bytes to the disks of all servers
	Pending  float64 `json:"pending"`     // bytes of one replica's store while it waits
	Receipt  float64 `json:"receipt"`     // bytes of one replica's store once it is completed
}

// costOf reads a cost from what was measured.
func costOf(of func(key string) float64) cost {
	return cost{
		Producer: of("producer_cpu"), Worker: of("worker_cpu"), Submit: of("server_submit_cpu"), Work: of("server_work_cpu"),
		Busiest: of("busiest_cpu"), Up: of("up"), Down: of("down"), Routed: of("routed"), Written: of("written"),
		Pending: of("pending_bytes"), Receipt: of("receipt_bytes"),
	}
}

// server is the CPU time of all servers.
func (c cost) server() float64 { return c.Submit + c.Work }

// line is the cost of a command by the size of its payload: what was measured
// at two sizes, and evenly in between and beyond.
type line struct{ small, large cost }

// at returns the cost with a payload of so many bytes.
func (l line) at(payload int) cost {
	part := float64(payload-payloadSize) / float64(largePayload-payloadSize)
	mix := func(small, large float64) float64 { return small + part*(large-small) }
	a, b := l.small, l.large
	return cost{
		Producer: mix(a.Producer, b.Producer), Worker: mix(a.Worker, b.Worker), Submit: mix(a.Submit, b.Submit),
		Work: mix(a.Work, b.Work), Busiest: mix(a.Busiest, b.Busiest), Up: mix(a.Up, b.Up), Down: mix(a.Down, b.Down),
		Routed: mix(a.Routed, b.Routed), Written: mix(a.Written, b.Written), Pending: mix(a.Pending, b.Pending), Receipt: mix(a.Receipt, b.Receipt),
	}
}

// submitRate and workRate are what so many cores can do, of clients and
// servers together, where nothing else holds them up.
func (c cost) submitRate(cores int) float64 { return float64(cores) * 1e6 / (c.Producer + c.Submit) }
func (c cost) workRate(cores int) float64   { return float64(cores) * 1e6 / (c.Worker + c.Work) }

// assumptions are what the model is told about the machines. They are not measured.
type assumptions struct {
	Cores int     `json:"cores_per_server"`
	NIC   float64 `json:"nic_gbit"` // of each server, in each direction
	Disk  float64 `json:"disk_mb"`  // MB/s that each server's disk takes
	Used  float64 `json:"used"`     // the part of all three that is used at most
}

func defaultAssumptions() assumptions { return assumptions{Cores: 16, NIC: 25, Disk: 1000, Used: 0.6} }

// need is what a rate takes.
type need struct {
	Rate        float64 `json:"rate"`
	ClientCores float64 `json:"client_cores"` // without what handlers do
	ServerCores float64 `json:"server_cores"`
	Servers     int     `json:"servers"`
	FirstLimit  string  `json:"first_limit"` // what the number of servers comes from
	Shards      int     `json:"shards"`
	Pools       int     `json:"pools"`
	NIC         float64 `json:"gbit"`       // of all servers, in the busier direction
	Disk        float64 `json:"disk_mb"`    // MB/s, of all servers
	Day         float64 `json:"day_tb"`     // TB of receipts per day of retention, all replicas
	Backlog     float64 `json:"backlog_gb"` // GB of an hour's commands that nobody works on, all replicas
}

// needs computes what a rate of commands per second takes, of servers whose
// assets have so many replicas.
func (a assumptions) needs(rate float64, c cost, replicas int) need {
	n := need{
		Rate:        rate,
		ClientCores: rate * (c.Producer + c.Worker) / 1e6 / a.Used,
		ServerCores: rate * c.server() / 1e6 / a.Used,
		NIC:         rate * (max(c.Up, c.Down) + c.Routed) * 8 / 1e9,
		Disk:        rate * c.Written / 1e6,
		Day:         rate * c.Receipt * float64(replicas) * 86_400 / 1e12,
		Backlog:     rate * c.Pending * float64(replicas) * 3600 / 1e9,
	}
	// As if a shard could use one core of the server that leads it, and no more.
	n.Shards = int(math.Ceil(rate * c.Busiest / 1e6 / a.Used))
	n.Pools = (n.Shards + tallyman.MaxShards - 1) / tallyman.MaxShards
	n.Servers, n.FirstLimit = replicas, "replicas"
	for _, by := range []struct {
		what    string
		servers float64
	}{
		{"CPU", n.ServerCores / float64(a.Cores)},
		{"network", n.NIC / a.NIC / a.Used},
		{"disk", n.Disk / a.Disk / a.Used},
	} {
		if s := int(math.Ceil(by.servers)); s > n.Servers {
			n.Servers, n.FirstLimit = s, by.what
		}
	}
	return n
}
