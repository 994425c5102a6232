package group_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
	"go.uber.org/goleak"
)

// A server that is killed in the middle of a batch leaves goroutines of the
// batch's store behind.
func TestMain(m *testing.M) {
	pooltest.SideBySide(4)
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	)
}

// told is what one writer was told about one of its writes.
type told struct {
	key   command.Token
	owner string
	seq   uint64
	err   error
}

// rivals are two participants of a pool that write the same keys at the same
// time, from many goroutines each, while servers are killed.
type rivals struct {
	pools   [2]*tallyman.Pool
	acked   atomic.Int64
	records [2][]told // by participant
	offered [2][]told
	mu      sync.Mutex
}

const rivalWriters = 64

// run writes until ctx ends.
func (r *rivals) run(t *testing.T, ctx context.Context) *sync.WaitGroup {
	t.Helper()
	writing := &sync.WaitGroup{}
	var next [2]atomic.Int64
	for p := range r.pools {
		for range rivalWriters {
			writing.Go(func() {
				for ctx.Err() == nil {
					n := next[p].Add(1)
					r.one(p, "owner-"+strconv.Itoa(p), command.Token("key-"+strconv.FormatInt(n, 10)))
				}
			})
		}
	}
	return writing
}

// one writes a record and publishes a command, at the same time.
func (r *rivals) one(p int, owner string, key command.Token) {
	pool := r.pools[p]
	record, offer := told{key: key, owner: owner}, told{key: key, owner: owner}
	var both sync.WaitGroup
	both.Add(2)
	rec := &kvstate.Record{ID: string(key), Kind: "k", Owner: owner, State: kvstate.Completed}
	if err := pool.Records().Write(key, rec, func(revision uint64, err error) {
		record.seq, record.err = revision, err
		both.Done()
	}); err != nil {
		record.err = err
		both.Done()
	}
	env, err := dedupe.Identify(command.Command{ID: string(key), Kind: "k", Queue: command.DefaultQueue, Payload: []byte("same")})
	if err == nil {
		err = pool.Commands().Publish(env, func(ok stream.Accepted, err error) {
			offer.seq, offer.err = ok.Sequence, err
			if err == nil && ok.Repeated {
				offer.err = stream.ErrRepeated
			}
			both.Done()
		})
	}
	if err != nil {
		offer.err = err
		both.Done()
	}
	both.Wait()
	r.mu.Lock()
	r.records[p], r.offered[p] = append(r.records[p], record), append(r.offered[p], offer)
	r.mu.Unlock()
	if record.err == nil {
		r.acked.Add(1)
	}
	if record.err != nil && !errors.Is(record.err, kvstate.ErrStale) {
		<-time.After(time.Millisecond) // the server is away
	}
}

// inStream is a message as it lies in a stream, and the batch it came in.
type inStream struct {
	subject string
	seq     uint64
	owner   string
}

// readAll reads a whole stream of which every subject was written once, and
// checks that every batch in it is whole.
func readAll(t *testing.T, ctx context.Context, nc *nats.Conn, name string) (bySubject map[string]inStream, batches int) {
	t.Helper()
	all, batches := batchesOf(t, ctx, nc, name)
	bySubject = map[string]inStream{}
	ends := map[string]int{}
	sizes := map[string]int{}
	for _, m := range all {
		if before, twice := bySubject[m.Subject]; twice {
			t.Errorf("%s is stored twice: %d and %d", m.Subject, before.seq, m.Seq)
		}
		bySubject[m.Subject] = inStream{m.Subject, m.Seq, m.Header.Get(command.HeaderOwner)}
		if id := m.Header.Get("Nats-Batch-Id"); id != "" {
			sizes[id]++
			if m.Header.Get("Nats-Batch-Commit") != "" {
				ends[id], _ = strconv.Atoi(m.Header.Get("Nats-Batch-Sequence"))
			}
		}
	}
	for id, n := range sizes {
		if ends[id] != n {
			t.Errorf("stream %s has %d messages of batch %s, whose last is number %d", name, n, id, ends[id])
		}
	}
	return bySubject, batches
}

// batchesOf reads a whole stream and counts the batches in it.
func batchesOf(t *testing.T, ctx context.Context, nc *nats.Conn, name string) (all []pipeline.Stored, batches int) {
	t.Helper()
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	pooltest.Await(t, ctx, "all of "+name, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a request may be lost in an election
		defer cancel()
		str, err := pooltest.JetStream(t, nc).Stream(ctx, name)
		if err != nil {
			return false
		}
		all = all[:0]
		for more := true; more; {
			q := pipeline.Query{Stream: name, From: 1, Subject: ">", Batch: 1000, Bytes: 1 << 20}
			if n := len(all); n > 0 {
				q.From = all[n-1].Seq + 1
			}
			var page []pipeline.Stored
			if page, more, err = pipeline.Page(ctx, pipe, q, func(m pipeline.Stored) pipeline.Stored { return m }); err != nil {
				return false
			}
			all = append(all, page...)
		}
		return uint64(len(all)) >= str.CachedInfo().State.Msgs // a replica that answers may lag
	})
	ids := map[string]bool{}
	for _, m := range all {
		if id := m.Header.Get("Nats-Batch-Id"); id != "" {
			ids[id] = true
		}
	}
	return all, len(ids)
}

// check compares what the writers were told with what is stored.
func (r *rivals) check(t *testing.T, ctx context.Context, nc *nats.Conn) {
	t.Helper()
	records, recordBatches := readAll(t, ctx, nc, "KV_main")
	offered, offerBatches := readAll(t, ctx, nc, "main_commands")
	if recordBatches == 0 || offerBatches == 0 {
		t.Errorf("got %d batches of records and %d of commands: nothing was shown", recordBatches, offerBatches)
	}
	acked, refused, unknown := 0, 0, 0
	for p := range r.pools {
		for _, w := range r.records[p] {
			got := records["$KV.main."+string(w.key)]
			switch {
			case w.err == nil:
				acked++
				if got.seq != w.seq || got.owner != w.owner {
					t.Errorf("%s of %s was acknowledged with revision %d; stored is %+v", w.key, w.owner, w.seq, got)
				}
			case errors.Is(w.err, kvstate.ErrIndeterminate):
				unknown++
			default:
				refused++
				if got.owner == w.owner {
					t.Errorf("%s of %s was refused (%v), and is stored: %+v", w.key, w.owner, w.err, got)
				}
			}
		}
		for _, w := range r.offered[p] {
			if got := offered[stream.Subject("main", command.DefaultQueue, "k", w.key)]; w.err == nil && got.seq != w.seq {
				t.Errorf("command %s was accepted as sequence %d; stored is %+v", w.key, w.seq, got)
			}
		}
	}
	t.Logf("%d records acknowledged, %d refused, %d unknown; %d batches of records, %d of commands", acked, refused, unknown, recordBatches, offerBatches)
	if acked == 0 || refused == 0 || unknown == 0 {
		t.Errorf("got %d acknowledged, %d refused, %d unknown: not all was shown", acked, refused, unknown)
	}
}

// TestGroup_KilledInTheMiddle kills servers while many write in groups.
// Afterwards each acknowledged write is there, none is there twice, none of a
// refused one is there, and every batch is whole.
func TestGroup_KilledInTheMiddle(t *testing.T) {
	t.Parallel()
	settings := tallyman.Settings{Commit: tallyman.CommitGroup, Retention: time.Hour}
	for name, always := range map[string]bool{"one replica": false, "one replica, sync always": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), SyncAlways: always})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(server.Close)
			killInTheMiddle(t, server.URL(), settings, 1, func(int) error {
				server.Kill()
				return server.Restart()
			})
		})
	}
	t.Run("three replicas", func(t *testing.T) {
		t.Parallel()
		cluster, err := embedded.StartCluster(3, embedded.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		killInTheMiddle(t, cluster.URL(), settings, 3, func(round int) error {
			cluster.Kill(round % 3)
			return cluster.Restart(round % 3)
		})
	})
}

func killInTheMiddle(t *testing.T, url string, settings tallyman.Settings, replicas int, kill func(round int) error) {
	t.Helper()
	ctx := pooltest.Context(t)
	r := &rivals{}
	first := pooltest.Connect(t, url)
	r.pools[0] = pooltest.Create(t, first, settings, tallyman.Topology{Replicas: replicas})
	r.pools[1] = pooltest.Open(t, pooltest.Connect(t, url))
	writes, stop := context.WithCancel(ctx)
	writing := r.run(t, writes)
	for round := range 3 {
		before := r.acked.Load()
		pooltest.Await(t, ctx, fmt.Sprintf("writes in round %d", round), func() bool { return r.acked.Load() > before+250 })
		if err := kill(round); err != nil {
			t.Fatal(err)
		}
	}
	before := r.acked.Load()
	pooltest.Await(t, ctx, "writes after the last kill", func() bool { return r.acked.Load() > before+250 })
	stop()
	writing.Wait()
	r.check(t, ctx, first)
}
