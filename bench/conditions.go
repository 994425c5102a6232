package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// conditions say where, with what and beside what something was measured.
type conditions struct {
	Machine machine  `json:"machine"`
	N       int      `json:"n"`
	Rounds  int      `json:"rounds"`
	Servers []string `json:"servers"` // with their durability
	Setup   string   `json:"setup"`   // of Tallyman, as it was asked for
	Assets  string   `json:"assets"`  // that it was found to have made, at first
	Disk    *disk    `json:"disk,omitempty"`
	// LoadBefore and LoadAfter are the load averages of 1, 5 and 15 minutes. This
	// program's own processes are part of what comes after.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

func newConditions(l load, with layout) conditions {
	return conditions{
		Machine: thisMachine(), N: l.N, Rounds: l.Rounds, LoadBefore: loadAverage(),
		Setup: with.described(), Disk: with.disk(),
	}
}

// disk measures what flushes cost, where that matters; nil elsewhere or if it
// cannot be told.
func (l layout) disk() *disk {
	if !l.sync {
		return nil
	}
	d, err := probeDisk(os.TempDir())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: probe the disk:", err)
		return nil
	}
	return &d
}

func thisMachine() machine {
	return machine{
		CPU: cpuModel(), Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Go: runtime.Version(), Client: nats.Version,
	}
}

// ran notes the server that a contestant met.
func (c *conditions) ran(on Contestant, server report) {
	line := on.System().name() + " " + server.Version + ", " + server.Durability
	if !slices.Contains(c.Servers, line) {
		c.Servers = append(c.Servers, line)
	}
	if on.Name() == tallymanName && c.Assets == "" {
		c.Assets = server.Assets
	}
}

func (c *conditions) done() { c.LoadAfter = loadAverage() }

func (c conditions) write(b *strings.Builder) {
	m := c.Machine
	fmt.Fprintf(b, "- machine: %s, %s, %s; load average %s before, %s after\n", m.CPU, plural.Count(m.Cores, "core"), m.OS, c.LoadBefore, c.LoadAfter)
	fmt.Fprintf(b, "- versions: %s, nats.go %s\n", m.Go, m.Client)
	for _, line := range c.Servers {
		fmt.Fprintf(b, "- %s\n", line)
	}
	writeSetup(b, c.Setup, c.Assets, c.Disk)
}

// writeSetup says how Tallyman was set up, and on which disk.
func writeSetup(b *strings.Builder, setup, assets string, d *disk) {
	if setup != "" {
		fmt.Fprintf(b, "- tallyman: %s; it made %s\n", setup, assets)
	}
	if d != nil {
		fmt.Fprintf(b, "- disk: %v\n", *d)
	}
}

// loadAverage says how busy the machine is, or nothing where it does not tell.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
