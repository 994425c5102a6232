//go:build unix

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/tallyman-go/tallyman"
)

// tallyman runs the operator's command to its end, and returns its exit code, -1 if it was killed.
func (s *stand) tallyman(t *testing.T, env string, args ...string) (code int, said string) {
	t.Helper()
	path, err := operatorProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "NATS_URL="+s.url, "TALLYMAN_AS=ann", env)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// must runs the operator's command, which is to succeed and to say something.
func (s *stand) must(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, said := s.tallyman(t, "", args...); code != 0 || !strings.Contains(said, want) {
		t.Fatalf("%v: got exit code %d, want 0 with %q:\n%s", args, code, want, said)
	}
}

// TestReshard_Killed kills tallyman reshard at every one of its points, there and
// back, and lets real workers go on from there.
func TestReshard_Killed(t *testing.T) {
	t.Parallel()
	const n, bad = 60, 6
	s := newStand(t, short)
	ids := make([]string, 0, n+bad)
	for i := range n {
		ids = append(ids, fmt.Sprintf("r-%d", i))
	}
	for i := range bad {
		ids = append(ids, fmt.Sprintf("bad-%d", i))
	}
	kind := func(id string) string {
		if strings.HasPrefix(id, "bad") {
			return "fail" // its payload is no number
		}
		return "log"
	}
	submit := func(pool *tallyman.Pool, absorbed bool) {
		t.Helper()
		for _, id := range ids {
			if got, err := pool.Submit(t.Context(), tallyman.Command{ID: id, Kind: kind(id), Payload: []byte(id)}); err != nil || got.Absorbed != absorbed {
				t.Fatalf("submit %s: got %+v, %v, want absorbed %v", id, got, err, absorbed)
			}
		}
	}
	// rest waits until a worker has settled everything, and sends it home.
	rest := func(pool *tallyman.Pool, w *process) {
		t.Helper()
		await(t, "empty streams", func() bool {
			for _, at := range pool.Shards() {
				if state, err := at.Commands.State(t.Context()); err != nil || state.Messages > 0 {
					return false
				}
			}
			return true
		})
		w.signal(t, syscall.SIGTERM)
		if state := w.waitEnd(t, "it was to end"); !state.Success() {
			t.Fatalf("the worker ended with %v", state)
		}
		s.must(t, "the books balance", "audit", "--seal")
	}
	submit(s.pool, false)
	rest(s.pool, s.worker(t))

	for round, change := range []struct {
		to     int
		points []string
	}{
		{3, []string{"reshard-marked", "reshard-create", "reshard-created", "reshard-copied", "reshard-moved", "reshard-commit"}},
		{1, []string{"reshard-marked", "reshard-copied", "reshard-moved", "reshard-drop", "reshard-dropping", "reshard-dropped", "reshard-commit"}},
	} {
		shards := fmt.Sprint(change.to)
		for _, point := range change.points {
			code, said := s.tallyman(t, fmt.Sprintf("TALLYMAN_FAILPOINT=%s=kill:*:%s", point, s.path(fmt.Sprintf("died-%d-%s", round, point))), "reshard", "--shards", shards)
			if code != -1 {
				t.Fatalf("it was to die at %s; exit code %d:\n%s", point, code, said)
			}
			if code, said := s.tallyman(t, "", "status"); code != 1 || !strings.Contains(said, "tallyman reshard --shards "+shards) {
				t.Fatalf("status after it died at %s: exit code %d:\n%s", point, code, said)
			}
		}
		early := s.workerSoon(t)
		if state := early.waitEnd(t, "the pool cannot be opened"); state.Success() || !s.logged(t, "tallyman reshard --shards "+shards) {
			t.Fatalf("a worker ended with %v, want it to be refused with the remedy", state)
		}
		s.must(t, "has "+shards+" shard", "reshard", "--shards", shards)
		s.must(t, "the books balance", "audit")

		pool, err := tallyman.Open(t.Context(), s.nc, tallyman.DefaultPool)
		if err != nil {
			t.Fatal(err)
		}
		s.must(t, fmt.Sprintf("%d requeued", bad), "requeue", "--all")
		w := s.worker(t)
		submit(pool, true)
		rest(pool, w)
		if err := pool.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if got := len(s.of(t, "effect", id)); kind(id) == "log" && got != 1 {
			t.Errorf("%s: %d effects, want 1", id, got)
		} else if ran := len(s.of(t, "begin", id)); kind(id) == "fail" && ran != 3 {
			t.Errorf("%s: begun %d times, want once and each time that it was sent back", id, ran)
		}
	}
}
