package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// redisServer is a private Redis with Debian's program. Its append-only file is
// synced every second, or before every answer; there are no snapshots beside it.
type redisServer struct{ sync bool }

func (r redisServer) name() string {
	if r.sync {
		return "Redis (appendfsync always)"
	}
	return "Redis"
}

func (redisServer) missing() string {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "no Redis: apt-get install redis-server"
	}
	return ""
}

func (r redisServer) start(ctx context.Context, dir string) (*runningServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	fsync := "everysec"
	if r.sync {
		fsync = "always"
	}
	p, err := startProgram(exec.Command("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--appendonly", "yes", "--appendfsync", fsync, "--save", ""), dir)
	if err != nil {
		return nil, err
	}
	stop := func() { p.stop(syscall.SIGKILL) } // nothing is to be kept
	s := &runningServer{url: fmt.Sprintf("127.0.0.1:%d", port), cpu: p.cpu, stop: stop}
	if err := p.answers(ctx, func(ctx context.Context) error { return describeRedis(ctx, s) }); err != nil {
		stop()
		return nil, err
	}
	return s, nil
}

// describeRedis asks the server what it is and what it promises.
func describeRedis(ctx context.Context, s *runningServer) error {
	client := redis.NewClient(&redis.Options{Addr: s.url, MaxRetries: -1})
	defer client.Close() //nolint:errcheck // it was only read from
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(line, "redis_version:"); ok {
			s.version = strings.TrimSpace(version)
		}
	}
	settings, err := client.ConfigGet(ctx, "append*").Result()
	if err != nil {
		return err
	}
	survives := "survives a killed process, loses the last second in a power cut"
	if settings["appendfsync"] == "always" {
		survives = "survives a power cut"
	}
	s.durability = fmt.Sprintf("append-only file %s, fsync %s: %s", settings["appendonly"], settings["appendfsync"], survives)
	return nil
}
