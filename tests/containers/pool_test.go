//go:build containers

package containers

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// audited is the part of "tallyman audit --json" that is looked at.
type audited struct {
	Completed uint64 `json:"completed"`
	Parked    uint64 `json:"parked"`
	Balanced  bool   `json:"balanced"`
}

// awaitBooks waits until the books show that want commands completed, that none
// was parked, and that no sequence is unaccounted for.
func (p *project) awaitBooks(t *testing.T, want uint64) {
	t.Helper()
	eventually(t, 3*time.Minute, fmt.Sprintf("books balance with %d completed", want), func(ctx context.Context) error {
		out, err := p.run(ctx, nil, "tallyman", "audit", "--json")
		if err != nil {
			return err
		}
		var got audited
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return fmt.Errorf("audit: %w\n%s", err, out)
		}
		if want := (audited{Completed: want, Balanced: true}); got != want {
			return fmt.Errorf("audit: got %+v, want %+v", got, want)
		}
		return nil
	})
}

// Two hundred commands, half of them submitted twice, while the leader of the
// command stream and a worker with deliveries in its hands are killed.
func TestCompose_PoolLosesANodeAndAWorker(t *testing.T) {
	const commands = 200
	// How soon the killed worker's commands are taken over; read by
	// docker-compose.yml. Much longer than what a busy machine stalls for.
	t.Setenv("TALLYMAN_LEASE", "10s")

	line := func(n int) string { return fmt.Sprintf(`{"id":"order-%03d","amount":%d}`, n, n*n) }
	lines := make([]string, commands)
	for n := range lines {
		lines[n] = line(n)
	}
	p := newProject(t)
	submit := func(lines []string) {
		t.Helper()
		stdin := strings.NewReader(strings.Join(lines, "\n") + "\n")
		out := p.mustRun(t, stdin, "producer", "import", "-", "--kind", "sha256", "--id-field", "id", "--format", "jsonl", "--json")
		t.Logf("import of %d: %s", len(lines), strings.TrimSpace(out))
	}

	p.up(t, "--scale", "worker=4")
	workers := p.containers(t, "worker")
	if got, want := len(workers), 4; got != want {
		t.Fatalf("workers: got %d, want %d", got, want)
	}
	awaitHealthy(t, workers...)

	// A frozen worker still has its last pull open: the server hands it
	// commands that it neither runs nor gives back. Killed like this, it is
	// certain to take them along, however fast the machine.
	docker(t, "pause", workers[0])
	submit(lines[:commands/2])
	node := p.container(t, p.leader(t, "main_commands"))
	docker(t, "kill", node)
	docker(t, "kill", workers[0])
	submit(lines)
	p.awaitBooks(t, commands)

	t.Run("receipts hold what the handler returned", func(t *testing.T) {
		for _, n := range []int{0, commands/2 - 1, commands / 2, commands - 1} {
			id := fmt.Sprintf("order-%03d", n)
			out := p.mustRun(t, nil, "tallyman", "show", id, "--json")
			var record struct {
				State  string `json:"state"`
				Result string `json:"result"`
			}
			if err := json.Unmarshal([]byte(out), &record); err != nil {
				t.Fatalf("show %s: %v\n%s", id, err, out)
			}
			if got, want := record.State, "completed"; got != want {
				t.Errorf("state of %s: got %q, want %q", id, got, want)
			}
			if got, want := strings.TrimSpace(record.Result), fmt.Sprintf("%x", sha256.Sum256([]byte(line(n)))); got != want {
				t.Errorf("result of %s: got %q, want %q", id, got, want)
			}
		}
	})

	t.Run("books still balance when the node is back", func(t *testing.T) {
		docker(t, "start", node)
		awaitHealthy(t, node)
		p.awaitBooks(t, commands)
	})

	t.Run("the audit that runs beside it has sealed them, and ends well", func(t *testing.T) {
		id := p.container(t, "audit")
		eventually(t, 3*time.Minute, "a round that balances and seals all", func(ctx context.Context) error {
			report, err := p.run(ctx, nil, "tallyman", "audit", "--json")
			if err != nil {
				return err
			}
			var got struct {
				LastSeq uint64 `json:"last_seq"`
			}
			if err := json.Unmarshal([]byte(report), &got); err != nil {
				return err
			}
			out, err := p.try(ctx, nil, "logs", "--no-color", "audit")
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("0 pending, 0 parked, sealed through %d\n", got.LastSeq); !strings.Contains(out, want) {
				return fmt.Errorf("the log does not say %q:\n%s", want, out)
			}
			return nil
		})
		docker(t, "stop", id)
		out, err := output(exec.CommandContext(t.Context(), "docker", "inspect", "--format", "{{.State.ExitCode}}", id), "", nil)
		if got := strings.TrimSpace(out); err != nil || got != "0" {
			t.Errorf("exit code of the audit: got %s, %v, want 0", got, err)
		}
	})
}
