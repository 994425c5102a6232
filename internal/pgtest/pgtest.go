// Package pgtest finds a PostgreSQL server for tests. Nothing else may import it.
//
// It takes the server that TALLYMAN_TEST_POSTGRES names by a connection string,
// or else starts a private cluster with the programs of PostgreSQL that it
// finds, once per test binary, in a temporary folder and on a socket there. A
// server that was named and does not answer fails the test; that there is none
// skips it, with a line that says how to get one, or fails it where CI=true.
package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Env names the variable with the connection string of a server.
const Env = "TALLYMAN_TEST_POSTGRES"

const remedy = "set " + Env + " to a connection string such as postgres://user@127.0.0.1:5432/postgres, or run: .ci/postgres go test ./outbox/..."

var private struct {
	once sync.Once
	dir  string
	bin  string
	dsn  string
	err  error
}

// Main runs the tests and then stops the private cluster, if there is one.
// Call it in TestMain, and exit with what it returns.
func Main(run func() int) int {
	code := run()
	if private.dir != "" {
		if out, err := exec.Command(filepath.Join(private.bin, "pg_ctl"), "-D", filepath.Join(private.dir, "data"), "-m", "immediate", "-w", "stop").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "pgtest: stop the cluster: %v\n%s", err, out)
			code = max(code, 1)
		}
		_ = os.RemoveAll(private.dir) // a temporary folder
	}
	return code
}

// DSN returns a connection string for a schema that is the test's alone, and
// is dropped at its end.
func DSN(t testing.TB) string {
	t.Helper()
	server := os.Getenv(Env)
	if server == "" {
		private.once.Do(start)
		if private.err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatalf("no PostgreSQL: %v; %s", private.err, remedy)
			}
			t.Skipf("no PostgreSQL: %v; %s", private.err, remedy)
		}
		server = private.dsn
	}
	schema := "t_" + strings.ToLower(rand.Text()[:16])
	run(t, server, "CREATE SCHEMA "+schema)
	t.Cleanup(func() { run(t, server, "DROP SCHEMA "+schema+" CASCADE") })
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("%s: %v; %s", Env, err, remedy)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

func run(t testing.TB, server, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatalf("PostgreSQL does not answer: %v; %s", err, remedy)
	}
	defer conn.Close(ctx) //nolint:errcheck // it goes either way
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatal(err)
	}
}

// start makes a cluster and starts it.
func start() {
	private.dsn, private.err = func() (string, error) {
		bin, err := find()
		if err != nil {
			return "", err
		}
		if os.Geteuid() == 0 {
			return "", fmt.Errorf("the server in %s refuses to run as root", bin)
		}
		dir, err := os.MkdirTemp("", "tallyman-pg")
		if err != nil {
			return "", err
		}
		data := filepath.Join(dir, "data")
		for _, c := range [][]string{
			{"initdb", "-D", data, "-U", "tallyman", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"},
			{"pg_ctl", "-D", data, "-w", "-l", filepath.Join(dir, "log"), "-o", "-c listen_addresses='' -c fsync=off -k " + dir, "start"},
		} {
			if out, err := exec.Command(filepath.Join(bin, c[0]), c[1:]...).CombinedOutput(); err != nil {
				_ = os.RemoveAll(dir) // a temporary folder
				return "", fmt.Errorf("%s: %w: %s", c[0], err, out)
			}
		}
		private.dir, private.bin = dir, bin
		return "postgres://tallyman@/postgres?host=" + url.QueryEscape(dir), nil
	}()
}

// find returns the folder of PostgreSQL's programs.
func find() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian's place for them
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("its programs are not installed")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}
