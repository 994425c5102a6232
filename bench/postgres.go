package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// postgresUser owns the cluster where this runs as root, which PostgreSQL
// refuses to. Debian's package makes it.
const postgresUser = "postgres"

// postgres is a private cluster with the programs of Debian's package.
type postgres struct{}

func (postgres) name() string { return "PostgreSQL" }

func (postgres) missing() string {
	if _, err := postgresPrograms(); err != nil {
		return "no PostgreSQL: apt-get install postgresql"
	}
	if _, err := postgresOwner(); err != nil {
		return fmt.Sprintf("PostgreSQL does not run as root, and there is no user %s: apt-get install postgresql", postgresUser)
	}
	return ""
}

func (postgres) start(ctx context.Context, dir string) (_ *runningServer, err error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	owner, err := postgresOwner()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	data := filepath.Join(dir, "data")
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
		return cmd
	}
	if out, err := as(exec.CommandContext(ctx, filepath.Join(bin, "initdb"),
		"-D", data, "-U", "bench", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	args := []string{"-D", data, "-p", strconv.Itoa(port), "-k", dir}
	for _, setting := range postgresSettings {
		args = append(args, "-c", setting)
	}
	p, err := startProgram(as(exec.Command(filepath.Join(bin, "postgres"), args...)), dir)
	if err != nil {
		return nil, err
	}
	stop := func() { p.stop(syscall.SIGQUIT) } // nothing is to be kept
	s := &runningServer{url: fmt.Sprintf("postgres://bench@127.0.0.1:%d/postgres?sslmode=disable", port), cpu: p.cpu, stop: stop}
	if err := p.answers(ctx, func(ctx context.Context) error { return describePostgres(ctx, s) }); err != nil {
		stop()
		return nil, err
	}
	return s, nil
}

// postgresSettings differ from the defaults in memory and in how much log may
// lie between two checkpoints, so that none comes in the middle of a scenario,
// and in the times of commits, which the books are read from.
var postgresSettings = []string{
	"listen_addresses=127.0.0.1",
	"max_connections=200",
	"shared_buffers=512MB",
	"max_wal_size=4GB",
	"track_commit_timestamp=on",
}

// describePostgres asks the server what it is and what it promises.
func describePostgres(ctx context.Context, s *runningServer) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // it was only read from
	var fsync, commit string
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')`).
		Scan(&s.version, &fsync, &commit); err != nil {
		return err
	}
	s.durability = fmt.Sprintf("fsync %s, synchronous_commit %s", fsync, commit)
	if fsync == "on" && commit == "on" {
		s.durability += ": survives a power cut"
	}
	return nil
}

// postgresPrograms returns the folder of PostgreSQL's programs.
func postgresPrograms() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian's place for them
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return filepath.Dir(slices.Max(found)), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}

// postgresOwner returns whom the cluster belongs to; nil for who runs this.
func postgresOwner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(postgresUser)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
