//go:build containers

package containers

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// project is one running copy of docker-compose.yml.
type project struct {
	name    string
	root    string   // where docker-compose.yml lies
	compose []string // the compose command and its first arguments
}

// newProject returns a project that nothing was started in yet. Whatever is
// started in it ends with the test, its logs printed first if the test failed.
func newProject(t *testing.T) *project {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	p := &project{name: "tallyman-" + strings.ToLower(rand.Text()[:8]), root: root, compose: composeCommand(t)}
	t.Cleanup(func() {
		// The test's own context has ended by now.
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if t.Failed() {
			for _, args := range [][]string{{"ps"}, {"logs", "--no-color", "--tail", "200"}} {
				out, err := p.try(ctx, nil, args...)
				t.Logf("compose %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
		if _, err := p.try(ctx, nil, "down", "--volumes", "--remove-orphans", "--timeout", "5"); err != nil {
			t.Errorf("bring down project %s: %v", p.name, err)
		}
	})
	return p
}

func composeCommand(t *testing.T) []string {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "docker", "info").CombinedOutput(); err != nil {
		t.Fatalf("no Docker daemon: %v; install docker and start dockerd\n%s", err, out)
	}
	if named := strings.Fields(os.Getenv("TALLYMAN_COMPOSE")); len(named) > 0 {
		return named
	}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		return []string{path}
	}
	if err := exec.CommandContext(t.Context(), "docker", "compose", "version").Run(); err == nil {
		return []string{"docker", "compose"}
	}
	t.Fatal(`neither docker-compose nor "docker compose" is there; on Debian: apt-get install docker-compose`)
	return nil
}

// try runs compose and returns what it wrote to stdout.
func (p *project) try(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	argv := append(append([]string{}, p.compose[1:]...), "--project-name", p.name)
	return output(exec.CommandContext(ctx, p.compose[0], append(argv, args...)...), p.root, stdin)
}

// up starts services and what they depend on.
func (p *project) up(t *testing.T, args ...string) {
	t.Helper()
	start := time.Now()
	if _, err := p.try(t.Context(), nil, append([]string{"up", "--detach"}, args...)...); err != nil {
		t.Fatalf("bring up: %v", err)
	}
	t.Logf("up %s: %v", strings.Join(args, " "), time.Since(start).Round(time.Second))
}

// run runs one of the tools in a container of its own and returns its stdout.
func (p *project) run(ctx context.Context, stdin io.Reader, service string, args ...string) (string, error) {
	return p.try(ctx, stdin, append([]string{"run", "--rm", "-T", service}, args...)...)
}

// mustRun is run for a command that has to succeed.
func (p *project) mustRun(t *testing.T, stdin io.Reader, service string, args ...string) string {
	t.Helper()
	out, err := p.run(t.Context(), stdin, service, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", service, strings.Join(args, " "), err)
	}
	return out
}

// containers returns the ids of a service's running containers.
func (p *project) containers(t *testing.T, service string) []string {
	t.Helper()
	out, err := p.try(t.Context(), nil, "ps", "-q", service)
	if err != nil {
		t.Fatalf("list containers of %s: %v", service, err)
	}
	return strings.Fields(out)
}

// container returns the id of a service's only container.
func (p *project) container(t *testing.T, service string) string {
	t.Helper()
	ids := p.containers(t, service)
	if len(ids) != 1 {
		t.Fatalf("containers of %s: got %d, want 1", service, len(ids))
	}
	return ids[0]
}

// awaitHealthy waits until Docker calls all the containers healthy.
func awaitHealthy(t *testing.T, ids ...string) {
	t.Helper()
	eventually(t, 2*time.Minute, "containers are healthy", func(ctx context.Context) error {
		for _, id := range ids {
			state, err := output(exec.CommandContext(ctx, "docker", "inspect", "--format", "{{.Name}} {{.State.Health.Status}}", id), "", nil)
			if err != nil {
				return err
			}
			if !strings.HasSuffix(strings.TrimSpace(state), " healthy") {
				return fmt.Errorf("container is %s", strings.TrimSpace(state))
			}
		}
		return nil
	})
}

// docker runs the docker client.
func docker(t *testing.T, args ...string) {
	t.Helper()
	if _, err := output(exec.CommandContext(t.Context(), "docker", args...), "", nil); err != nil {
		t.Fatalf("docker %s: %v", strings.Join(args, " "), err)
	}
}

// output runs cmd; its error carries what was written to stderr.
func output(cmd *exec.Cmd, dir string, stdin io.Reader) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%w\nstdout: %s\nstderr: %s", err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// eventually asks check until it returns nil, or fails the test with its last error.
func eventually(t *testing.T, within time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	start := time.Now()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		// A check that was cut short by the deadline tells less than the one before.
		err := check(ctx)
		if err == nil {
			t.Logf("%s: after %v", what, time.Since(start).Round(100*time.Millisecond))
			return
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not within %v: %s: %v", within, what, last)
		case <-tick.C:
		}
	}
}
