package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
)

// conditions say where, with what and beside what something was measured.
type conditions struct {
	Machine machine  `json:"machine"`
	N       int      `json:"n"`
	Rounds  int      `json:"rounds"`
	Servers []string `json:"servers"` // with their durability
	// LoadBefore and LoadAfter are the load averages of 1, 5 and 15 minutes. This
	// program's own processes are part of what comes after.
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

func newConditions(l load) conditions {
	return conditions{Machine: thisMachine(), N: l.N, Rounds: l.Rounds, LoadBefore: loadAverage()}
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
}

func (c *conditions) done() { c.LoadAfter = loadAverage() }

func (c conditions) write(b *strings.Builder) {
	m := c.Machine
	fmt.Fprintf(b, "- machine: %s, %d cores, %s; load average %s before, %s after\n", m.CPU, m.Cores, m.OS, c.LoadBefore, c.LoadAfter)
	fmt.Fprintf(b, "- versions: %s, nats.go %s\n", m.Go, m.Client)
	for _, line := range c.Servers {
		fmt.Fprintf(b, "- %s\n", line)
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
