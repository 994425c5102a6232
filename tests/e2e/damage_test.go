//go:build unix

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/audit"
)

// TestNatsCLI_DamageIsNamedAndMended damages a pool with the stock CLI, in ways
// that the documents warn of, and does with it what each finding says.
func TestNatsCLI_DamageIsNamedAndMended(t *testing.T) {
	t.Parallel()
	path, home := natsCLI(t), t.TempDir()
	s := newStand(t, short)
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, append([]string{"--server", s.url}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nats %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	pub := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			run("pub", "main.commands.default.log."+id, "x", "-H", "Nats-Msg-Id:"+id)
		}
	}
	found := func(what string, seq uint64, id, words string) {
		t.Helper()
		r := s.audit(t)
		for _, f := range r.Findings {
			if f.What == what && f.Seq == seq && f.ID == id && strings.Contains(f.String(), words) {
				return
			}
		}
		t.Errorf("no finding %s about sequence %d, id %q, that says %q, in %v", what, seq, id, words, r.Findings)
	}
	balanced := func(when string) audit.Report {
		t.Helper()
		r, err := audit.Run(t.Context(), s.pool.Commands(), s.pool.Records(), audit.Options{Seal: true})
		if err != nil || !r.Balanced {
			t.Fatalf("%s: got %+v, %v; want balanced books", when, r, err)
		}
		return r
	}
	writeOff := func(seqs ...int) {
		t.Helper()
		for _, seq := range seqs {
			run("kv", "put", "main", fmt.Sprintf("_absorbed/%d", seq), "looked into")
		}
	}
	w := s.worker(t)
	pub("a", "b", "c")
	for _, id := range []string{"a", "b", "c"} {
		s.receipt(t, id)
	}
	s.settle(t)

	run("kv", "del", "-f", "main", "b")
	found(audit.FindingMissing, 2, "b", "its record, then completed, was deleted by hand at ")
	writeOff(2)
	if r := balanced("after b was written off"); r.SealedThrough != 3 {
		t.Errorf("sealed through %d, want 3", r.SealedThrough)
	}

	w.kill()
	await(t, "the server to forget the pulls of the dead", func() bool {
		q, err := s.pool.Commands().Queue(t.Context(), "default")
		return err == nil && q.Waiting == 0
	})
	pub("d", "e", "f")
	run("stream", "rmm", "-f", "main_commands", "5")
	found(audit.FindingMissing, 5, "", "likely deleted from the stream by hand before a worker got it")
	run("stream", "purge", "-f", "main_commands")
	for _, seq := range []uint64{4, 5, 6} {
		found(audit.FindingMissing, seq, "", "likely purged from the stream before a worker got it")
	}
	writeOff(4, 5, 6)
	balanced("after d, e and f were written off")

	backup := filepath.Join(home, "backup")
	run("stream", "backup", "main_commands", backup, "--no-progress")
	s.worker(t)
	pub("g", "h")
	s.receipt(t, "g")
	s.receipt(t, "h")
	s.settle(t)
	balanced("before the older copy")
	run("stream", "rm", "-f", "main_commands")
	run("stream", "restore", backup, "--no-progress")
	found(audit.FindingSetBack, 8, "", "restored from a backup")
}
