// Archive shows how a long command resumes: ten thousand files are packed into a
// JetStream object store by one command, whose worker is killed seven times on
// the way. Each worker goes on at the last offset that was saved.
//
//	go run ./examples/archive [-files 10000] [-kills 7]
//
// handler.go is what a user would write; the rest makes files, kills workers
// and counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
)

// story says what is to happen.
type story struct{ files, kills int }

// account is what came of it.
type account struct {
	Files    int // in the store, each compared with its original
	Kills    int
	Resumed  []uint64 // where each worker after the first went on
	Repeated int      // files that were packed more than once
}

func main() {
	if os.Getenv(serverEnv) != "" {
		exit(work())
	}
	var s story
	flag.IntVar(&s.files, "files", 10_000, "how many files to pack")
	flag.IntVar(&s.kills, "kills", 7, "how many workers to kill on the way")
	flag.Parse()
	a, err := s.run(context.Background())
	if err == nil {
		fmt.Printf("%d files are in the store, and each is like its original\n", a.Files)
		fmt.Printf("%d workers were killed; the next ones went on at %v\n", a.Kills, a.Resumed)
		fmt.Printf("%d files were packed twice: at most %d for each kill\n", a.Repeated, every)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (s story) run(ctx context.Context) (account, error) {
	dir, err := os.MkdirTemp("", "archive-")
	if err != nil {
		return account{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // temporary
	source := filepath.Join(dir, "source")
	if err := makeFiles(source, s.files); err != nil {
		return account{}, err
	}

	server, err := embedded.Start(embedded.Config{Dir: filepath.Join(dir, "store")})
	if err != nil {
		return account{}, err
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		return account{}, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return account{}, err
	}
	store, err := js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: storeName})
	if err != nil {
		return account{}, err
	}
	// A short lease, so that a dead worker is soon noticed; each kill costs an attempt.
	settings := tallyman.Settings{Lease: time.Second, MaxAttempts: s.kills + 1}
	if err := tallyman.Create(ctx, nc, poolName, settings, tallyman.Topology{}); err != nil {
		return account{}, err
	}
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return account{}, err
	}
	defer func() { _ = pool.Close() }() // returns nil

	command, err := archive.Command("archive-1", Archive{Dir: source})
	if err != nil {
		return account{}, err
	}
	if _, err := pool.Submit(ctx, command); err != nil {
		return account{}, err
	}
	a, err := s.killing(ctx, pool, server.URL(), filepath.Join(dir, "log"))
	if err != nil {
		return a, err
	}
	a.Files, err = compare(ctx, store, source)
	return a, err
}

// killing runs workers one after the other, kills all but the last in the
// middle, and waits for the receipt.
func (s story) killing(ctx context.Context, pool *tallyman.Pool, url, log string) (account, error) {
	var a account
	for a.Kills < s.kills {
		worker, err := startWorker(url, log)
		if err != nil {
			return a, err
		}
		a.Kills++
		err = awaitOffset(ctx, pool, uint64(s.files*a.Kills/(s.kills+1)))
		err = errors.Join(err, awaitMore(ctx, log, rand.IntN(every)), worker.Process.Kill())
		_ = worker.Wait() // killed
		if err != nil {
			return a, err
		}
		saved, err := pool.Find(ctx, "archive-1")
		if err != nil {
			return a, err
		}
		a.Resumed = append(a.Resumed, saved.Offset)
	}
	worker, err := startWorker(url, log)
	if err != nil {
		return a, err
	}
	defer func() { _ = worker.Wait() }()         // ends by the next
	defer func() { _ = worker.Process.Kill() }() // an error means that it has ended
	receipt, err := pool.Wait(ctx, "archive-1")
	if err != nil {
		return a, err
	}
	if done, err := archive.Result(receipt); err != nil || done.Files != s.files {
		return a, fmt.Errorf("the receipt tells of %d files, want %d: %w", done.Files, s.files, err)
	}
	resumed, packed, err := readLog(log)
	if err != nil {
		return a, err
	}
	if want := append([]uint64{0}, a.Resumed...); !slices.Equal(resumed, want) {
		return a, fmt.Errorf("workers began at %v, and what had been saved was %v", resumed, want)
	}
	for n := range uint64(s.files) {
		if packed[n] == 0 {
			return a, fmt.Errorf("file %d was never packed", n)
		}
		a.Repeated += packed[n] - 1
	}
	if most := s.kills * every; a.Repeated > most {
		return a, fmt.Errorf("%d files were packed again, want at most %d", a.Repeated, most)
	}
	return a, nil
}

// startWorker starts this program as a worker.
func startWorker(url, log string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverEnv+"="+url, logEnv+"="+log)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return cmd, nil
}

// awaitOffset follows the record until progress beyond the offset was saved.
func awaitOffset(ctx context.Context, pool *tallyman.Pool, offset uint64) error {
	for change, err := range pool.Watch(ctx, tallyman.Filter{IDs: []string{"archive-1"}, Current: true}) {
		if err != nil {
			return err
		}
		if r := change.Record; r != nil && r.Offset >= offset {
			return nil
		}
	}
	return ctx.Err()
}

// awaitMore waits until so many more files have been packed.
func awaitMore(ctx context.Context, log string, files int) error {
	const line = len("packed 1000\n")
	at := int64(-1)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		info, err := os.Stat(log)
		if err != nil {
			return err
		}
		if at < 0 {
			at = info.Size()
		}
		if info.Size()-at >= int64(files*line) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
