package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/tallyman-go/tallyman"
)

// point is one load whose cost per command is measured.
type point struct {
	name     string
	replicas int
	payload  int // bytes of each command's payload
	shards   int
	clients  int  // producers, and as many workers
	sync     bool // servers flush before they answer, and their flushes are counted
	checks   bool // the model predicts it; the others are what it knows
}

// largePayload is the second size that the model knows: between it and
// payloadSize, costs are taken to grow evenly.
const largePayload = 4096

// points lists what is measured. The first four are what the model knows.
func points() []point {
	return []point{
		{name: "R1, 128 B", replicas: 1, payload: payloadSize, shards: 1, clients: 1},
		{name: "R1, 4 KiB", replicas: 1, payload: largePayload, shards: 1, clients: 1},
		{name: "R3, 128 B", replicas: 3, payload: payloadSize, shards: 1, clients: 1},
		{name: "R3, 4 KiB", replicas: 3, payload: largePayload, shards: 1, clients: 1},
		{name: "R1, 1 KiB", replicas: 1, payload: 1024, shards: 1, clients: 1, checks: true},
		{name: "R3, 1 KiB", replicas: 3, payload: 1024, shards: 1, clients: 1, checks: true},
		{name: "R1, 4 shards", replicas: 1, payload: payloadSize, shards: 4, clients: 1, checks: true},
		{name: "R3, 4 shards", replicas: 3, payload: payloadSize, shards: 4, clients: 1, checks: true},
		{name: "R1, 2 producers, then 2 workers", replicas: 1, payload: payloadSize, shards: 1, clients: 2, checks: true},
		{name: "R1, power-safe", replicas: 1, payload: payloadSize, shards: 1, clients: 1, sync: true},
		{name: "R3, power-safe", replicas: 3, payload: payloadSize, shards: 1, clients: 1, sync: true},
	}
}

func capacityNames() []string {
	var names []string
	for _, p := range points() {
		names = append(names, p.name)
	}
	return names
}

// capacityMode measures what a command takes of everything there is.
func capacityMode() mode {
	return mode{n: 50_000, rounds: 3, names: capacityNames(),
		refuses: func(with layout) error {
			if with.sync || with.replicas > 1 || with.pool.Shards > 1 {
				return errors.New("--capacity has its own replicas, shards and servers; leave --sync, --replicas and --shards away")
			}
			return nil
		},
		run: func(ctx context.Context, l load, with layout, progress func(string)) (tables, error) {
			return measureCapacity(ctx, l, with, progress)
		}}
}

// syncShare is the part of the load that a server which flushes every write gets.
const syncShare = 10

// settings are those of the pool at this point.
func (p point) settings(pool tallyman.Settings) tallyman.Settings {
	pool.Shards = p.shards
	if p.sync {
		pool.Removal, pool.Commit = tallyman.RemovalSweep, tallyman.CommitGroup
	}
	return pool
}

// measurePoint submits n commands, lets workers complete them, and notes what
// one command took, in microseconds and bytes.
func measurePoint(ctx context.Context, l load, p point, with layout, s sample) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTimeout, fmt.Errorf("not done after %v", scenarioTimeout))
	defer cancel()
	with.replicas, with.sync, with.pool = p.replicas, p.sync, p.settings(with.pool)
	n := l.N
	trace := ""
	if p.sync {
		n = max(1, n/syncShare)
		dir, err := os.MkdirTemp("", "tallyman-bench-trace-")
		if err != nil {
			return report{}, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
		trace = filepath.Join(dir, "strace")
	}
	c := onJetStream{natsContestant: ours{}, layout: with}
	f, err := openTraced(ctx, c, l.profiles(scenario{name: p.name}, c), trace)
	if err != nil {
		return report{}, err
	}
	defer f.close()
	f.payload = p.payload
	b, err := f.streams()
	if err != nil {
		return report{}, err
	}
	g := &gauge{f: f, b: b, trace: trace, n: n, s: s}
	if err := g.submit(ctx, p.clients); err != nil {
		return report{}, fmt.Errorf("submit: %w", err)
	}
	if err := g.work(ctx, p.clients); err != nil {
		return report{}, fmt.Errorf("work: %w", err)
	}
	if got, err := f.completions(ctx, n); err != nil {
		return report{}, fmt.Errorf("%d of %d commands are completed: %w", len(got), n, err)
	}
	return f.described(), nil
}

// gauge reads what n commands took of clients, servers and their store.
type gauge struct {
	f     *field
	b     *streamBooks
	trace string
	n     int
	s     sample
}

// stand is how a server stands at some moment.
type stand struct {
	server  report
	flushes int
	store   int64 // bytes that its files occupy
}

func (g *gauge) stand(ctx context.Context) (now stand, err error) {
	if now.server, err = g.f.server.ask(ctx, "usage"); err != nil {
		return now, err
	}
	if now.store, err = occupied(g.f.dir); err != nil {
		return now, err
	}
	if g.trace != "" {
		lines, err := os.ReadFile(g.trace)
		if err != nil {
			return now, err
		}
		now.flushes = flushes(string(lines))
	}
	return now, nil
}

// submit lets producers submit n commands together.
func (g *gauge) submit(ctx context.Context, producers int) error {
	before, err := g.stand(ctx)
	if err != nil {
		return err
	}
	all := make([]*process, producers)
	used := make([]report, producers) // before
	for i := range all {
		n := g.n / producers
		if i == 0 {
			n += g.n % producers
		}
		if all[i], err = g.f.start(ctx, "produce", n, 0); err != nil {
			return err
		}
		defer all[i].close()
		if used[i], err = all[i].ask(ctx, "usage"); err != nil {
			return err
		}
	}
	done := make([]report, producers)
	errs := make([]error, producers)
	var running sync.WaitGroup
	for i, p := range all {
		running.Go(func() { done[i], errs[i] = p.ask(ctx, "go") })
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	start, end := done[0].Start, done[0].End
	for i := range done {
		if done[i].Start.Before(start) {
			start = done[i].Start
		}
		if done[i].End.After(end) {
			end = done[i].End
		}
		g.client("producer", used[i], done[i])
	}
	after, err := g.stand(ctx)
	if err != nil {
		return err
	}
	g.servers("submit", before, after)
	g.s["submit_rate"] = perSecond(g.n, end.Sub(start))
	commands, err := g.b.commands(ctx)
	if err != nil {
		return err
	}
	g.s["pending_bytes"] = float64(commands.Bytes) / float64(g.n)
	g.s["pending_store"] = g.each(after.store - before.store)
	return nil
}

// work lets workers complete all of it.
func (g *gauge) work(ctx context.Context, workers int) error {
	before, err := g.stand(ctx)
	if err != nil {
		return err
	}
	old, err := g.b.entries(ctx)
	if err != nil {
		return err
	}
	m := &meter{f: g.f}
	if err := m.begin(ctx, workers, ""); err != nil {
		return err
	}
	defer m.close()
	end, err := m.until(ctx, lookInterval, func() (bool, error) { _, done, err := g.b.Settled(ctx, g.n); return done, err })
	if err != nil {
		return err
	}
	if err := g.b.swept(ctx, 0); err != nil {
		return err
	}
	after, err := g.stand(ctx)
	if err != nil {
		return err
	}
	g.servers("work", before, after)
	g.s["work_rate"] = perSecond(g.n, end.Sub(m.began))
	for i, w := range m.workers {
		used, err := w.ask(ctx, "usage")
		if err != nil {
			return err
		}
		g.client("worker", m.before[i], used)
		if _, err := w.ask(ctx, "stop"); err != nil {
			return err
		}
	}
	entries, err := g.b.entries(ctx)
	if err != nil {
		return err
	}
	g.s["receipt_bytes"] = float64(entries.Bytes-old.Bytes) / float64(g.n)
	return nil
}

// each is the share of one command.
func (g *gauge) each(total int64) float64 { return float64(total) / float64(g.n) }

// micros is the share of one command of a time, in microseconds.
func (g *gauge) micros(d time.Duration) float64 { return d.Seconds() * 1e6 / float64(g.n) }

// client adds what a client used.
func (g *gauge) client(role string, before, after report) {
	g.s[role+"_cpu"] += g.micros(after.CPU - before.CPU)
	g.s["up"] += g.each(after.Traffic.Sent - before.Traffic.Sent)
	g.s["down"] += g.each(after.Traffic.Received - before.Traffic.Received)
}

// servers adds what the servers used in a phase.
func (g *gauge) servers(phase string, before, after stand) {
	cpu := after.server.CPU - before.server.CPU
	busiest := cpu
	if nodes := after.server.Traffic.Nodes; len(nodes) > 0 {
		busiest = 0
		for i, node := range nodes {
			busiest = max(busiest, node-before.server.Traffic.Nodes[i])
		}
	}
	g.s["server_"+phase+"_cpu"] = g.micros(cpu)
	g.s["server_cpu"] += g.micros(cpu)
	g.s["busiest_cpu"] += g.micros(busiest)
	g.s["written"] += g.each(after.server.Traffic.Written - before.server.Traffic.Written)
	g.s["routed"] += g.each(after.server.Traffic.Routed - before.server.Traffic.Routed)
	g.s["flushes"] += g.each(int64(after.flushes - before.flushes))
}

// occupied returns how much of the disk the files of a folder take. What goes
// away meanwhile counts for nothing.
func occupied(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil //nolint:nilerr // it has gone
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
			total += stat.Blocks * 512
		}
		return nil
	})
	return total, err
}

// unable says why a point cannot be measured here; it is empty where it can.
func (p point) unable() string {
	if !p.sync {
		return ""
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return "no strace, which counts flushes: apt-get install strace"
	}
	return ""
}
