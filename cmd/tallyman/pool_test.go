package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/stream"
)

func TestInit(t *testing.T) {
	s := newScene(t)
	t.Run("creates a pool with the settings given", func(t *testing.T) {
		o := s.run(t, "init", "--lease", "5s", "--max-attempts", "3", "--queue", "default", "--queue", "slow", "--json")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got, "pool", "main")
		equal(t, got, "replicas", "1")
		equal(t, got, "queues", "[default slow]")
		equal(t, got, "settings", "map[backoff_max:10m0s backoff_min:1s commit:each lease:5s max_attempts:3 removal:ack retention:168h0m0s]")
	})
	t.Run("leaves a pool as it is when repeated", func(t *testing.T) {
		s.run(t, "init").expect(t, 0, "main is ready", "5s", "default slow")
	})
	t.Run("refuses to change settings in passing", func(t *testing.T) {
		s.run(t, "init", "--lease", "6s").expect(t, 1, "lease", "--change")
	})
	t.Run("changes them when told to", func(t *testing.T) {
		o := s.run(t, "init", "--lease", "6s", "--change")
		o.expect(t, 0, "6s")
	})
	t.Run("makes a pool that is swept, once and for all", func(t *testing.T) {
		o := s.run(t, "init", "--pool", "swept", "--removal", "sweep")
		o.expect(t, 0, "swept is ready", "sweep")
		s.run(t, "init", "--pool", "swept").expect(t, 0, "sweep")
		s.run(t, "init", "--pool", "swept", "--removal", "ack", "--change").expect(t, 1, "removal", "make another pool")
		s.run(t, "status", "--pool", "swept").expect(t, 0, "removal", "sweep")
	})
	t.Run("turns groups on and off", func(t *testing.T) {
		batches := func(want bool) {
			t.Helper()
			for _, name := range []string{"KV_main", "main_commands"} {
				str, err := s.js(t).Stream(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if got := str.CachedInfo().Config.AllowAtomicPublish; got != want {
					t.Errorf("stream %s takes batches: got %v, want %v", name, got, want)
				}
			}
		}
		batches(false)
		s.run(t, "init", "--commit", "group").expect(t, 1, "commit", "--change")
		batches(false)
		s.run(t, "init", "--commit", "group", "--change").expect(t, 0, "group")
		batches(true)
		s.run(t, "init").expect(t, 0, "group")
		batches(true)
		s.run(t, "init", "--commit", "each", "--change").expect(t, 0, "each")
		batches(false)
	})
	t.Run("tells wrong usage", func(t *testing.T) {
		s.run(t, "init", "--commit", "all").expect(t, 2, "--commit", "each or group")
		s.run(t, "init", "--replicas", "9").expect(t, 2, "--replicas 9")
		s.run(t, "init", "--queue", "a.b").expect(t, 2, "a.b")
		s.run(t, "init", "--removal", "magic").expect(t, 2, "magic")
		s.run(t, "init", "--frequency", "1").expect(t, 2, "--frequency")
	})
}

func TestPersist(t *testing.T) {
	t.Parallel()
	t.Run("tries again while the cluster has no leader, and says so once", func(t *testing.T) {
		t.Parallel()
		var stderr bytes.Buffer
		tries := 0
		err := persist(t.Context(), time.Minute, &stderr, func(context.Context) error {
			if tries++; tries < 3 {
				return fmt.Errorf("create: %w", stream.ErrUnavailable)
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("got %v after %d tries, want success after 3", err, tries)
		}
		if got := strings.Count(stderr.String(), "the servers are not ready"); got != 1 {
			t.Errorf("told %d times, want once: %s", got, stderr.String())
		}
	})
	t.Run("gives up at once on what will not pass", func(t *testing.T) {
		t.Parallel()
		tries := 0
		err := persist(t.Context(), time.Minute, &bytes.Buffer{}, func(context.Context) error {
			tries++
			return tallyman.ErrSettings
		})
		if !errors.Is(err, tallyman.ErrSettings) || tries != 1 {
			t.Errorf("got %v after %d tries, want ErrSettings after 1", err, tries)
		}
	})
	t.Run("gives up when patience is over", func(t *testing.T) {
		t.Parallel()
		err := persist(t.Context(), time.Millisecond, &bytes.Buffer{}, func(context.Context) error { return stream.ErrUnavailable })
		if !errors.Is(err, stream.ErrUnavailable) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
	})
}

func TestOpen(t *testing.T) {
	s := newScene(t)
	t.Run("a missing pool names the remedy", func(t *testing.T) {
		for _, args := range [][]string{{"status"}, {"list"}, {"show", "x"}, {"parked"}, {"audit"}, {"wait", "x"}} {
			s.run(t, args...).expect(t, 1, "no such pool", "tallyman init --pool main")
		}
	})
	t.Run("a missing server names the flag", func(t *testing.T) {
		run(t, "nats://127.0.0.1:1", "", "status").expect(t, 1, "--server")
	})
	t.Run("a denied permission names the subject", func(t *testing.T) {
		s.run(t, "init").expect(t, 0)
		s.run(t, "status").expect(t, 0, "0 commands, 0 bytes, last sequence 0")
		o := run(t, strings.Replace(s.url, "op:op", "blind:blind", 1), "", "status")
		o.expect(t, 1, "permission denied", "$JS.API.STREAM.INFO.KV_main")
		if strings.Count(o.stderr, "\n") != 1 {
			t.Errorf("got %q, want one line", o.stderr)
		}
		shut := strings.Replace(s.url, "op:op", "shut:shut", 1)
		run(t, shut, "", "status").expect(t, 0)
		submit(t, s.pool(t), tallyman.Command{ID: "x", Kind: "echo"})
		run(t, shut, "", "audit").expect(t, 1, "permission denied", "$JS.API.DIRECT.GET.main_commands")
	})
}

func TestStatus(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	submit(t, p, tallyman.Command{ID: "a", Kind: "echo"})
	submit(t, p, tallyman.Command{ID: "b", Kind: "bad"})
	work(t, p, "a", "b")
	submit(t, p, tallyman.Command{ID: "c", Kind: "echo"})
	submit(t, p, tallyman.Command{ID: "d", Kind: "echo", Queue: "orphan"})

	o := s.run(t, "status", "--json")
	o.expect(t, 0)
	got := o.object(t)
	equal(t, got, "pool", "main")
	equal(t, got, "unserved_queues", "[map[commands:1 name:orphan]]")
	equal(t, got["stream"].(map[string]any), "commands", "2")
	equal(t, got["stream"].(map[string]any), "last_seq", "4")
	states := got["states"].(map[string]any)
	equal(t, states, "completed", "1")
	equal(t, states, "parked", "1")
	equal(t, states, "waiting", "0")
	queue := got["queues"].([]any)[0].(map[string]any)
	equal(t, queue, "name", "default")
	equal(t, queue, "pending", "1")
	equal(t, queue, "waiting_pulls", "0")

	s.run(t, "status").expect(t, 0, "sequences 3 to 4", "queue orphan holds 1 command and has no consumer; run: tallyman init --pool main --queue orphan")
}

func TestAudit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	for _, id := range []string{"a", "b", "c"} {
		submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
	}
	o := s.run(t, "audit", "--json")
	o.expect(t, 0)
	got := o.object(t)
	equal(t, got, "balanced", "true")
	equal(t, got, "pending", "3")
	equal(t, got, "missing", "[]")
	for _, key := range []string{"last_seq", "completed", "parked", "cancelled", "absorbed", "missing_count", "doubled", "stranded", "corrupt"} {
		if _, ok := got[key]; !ok {
			t.Errorf("key %s is missing", key)
		}
	}
	s.run(t, "audit").expect(t, 0, "the books balance: all 3 sequences are accounted for")

	str, err := s.js(t).Stream(t.Context(), stream.Name("main"))
	if err != nil {
		t.Fatal(err)
	}
	if err := str.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	o = s.run(t, "audit", "--json")
	o.expect(t, 6, `pool "main": the books do not balance: 1 missing`)
	got = o.object(t)
	equal(t, got, "balanced", "false")
	equal(t, got, "missing", "[2]")
	s.run(t, "audit").expect(t, 6, "1: 2")
}

func TestRanges(t *testing.T) {
	t.Parallel()
	for want, seqs := range map[string][]uint64{
		"": nil, "7": {7}, "1-3": {1, 2, 3}, "1-2, 4, 6-7": {1, 2, 4, 6, 7},
	} {
		if got := ranges(seqs); got != want {
			t.Errorf("%v: got %q, want %q", seqs, got, want)
		}
	}
}

func TestStatus_Bounds(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init", "--shards", "2").expect(t, 0)
	if o := s.run(t, "status"); strings.Contains(o.stdout, "full at") {
		t.Errorf("got %q of a pool without a bound", o.stdout)
	}
	s.run(t, "init", "--max-commands", "10", "--max-bytes", "4096").expect(t, 0)
	s.run(t, "status").expect(t, 0, "full at       10 commands or 4096 bytes\n")
	got := s.run(t, "status", "--json").object(t)
	equal(t, got["stream"].(map[string]any), "max_commands", "10")
	equal(t, got["shards"].([]any)[1].(map[string]any)["stream"].(map[string]any), "max_bytes", "2048")
}

func TestStatus_Journal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	o := s.run(t, "status")
	o.expect(t, 0)
	if strings.Contains(o.stdout, "journal") {
		t.Errorf("got %q of a pool without a journal", o.stdout)
	}
	s.run(t, "init", "--journal").expect(t, 0)
	s.run(t, "status").expect(t, 0, "main_journal: 0 decisions, 0 not relayed yet\n")
	j, err := journal.Open(t.Context(), s.nc, s.pool(t), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	if _, err := j.Commit(t.Context(), "a", 0, journal.Decision{Commands: []tallyman.Command{{Kind: "echo"}}}); err != nil {
		t.Fatal(err)
	}
	s.run(t, "status").expect(t, 0, "main_journal: 1 decision, 1 not relayed yet, the oldest for ")
	look := func(url string) map[string]any {
		t.Helper()
		o := run(t, url, "", "status", "--json")
		o.expect(t, 0)
		return o.object(t)["journal"].(map[string]any)
	}
	got := look(s.url)
	equal(t, got, "name", "main_journal")
	equal(t, got, "unpublished", "1")
	blind := as("close", s.server.URL())
	run(t, blind, "", "status").expect(t, 0, "main_journal: not known: permission denied", "QUEUE", "absorbed")
	if e := look(blind)["error"]; !strings.Contains(fmt.Sprint(e), "$JS.API.STREAM.INFO.main_journal") {
		t.Errorf("got the error %v, want the denied subject", e)
	}
}

func TestAudit_Journal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	s.run(t, "audit", "--journal").expect(t, 1, "no such journal", "tallyman init --pool main --journal")
	s.run(t, "init", "--journal").expect(t, 0)
	s.run(t, "init", "--journal").expect(t, 0)
	p := s.pool(t)
	j, err := journal.Open(t.Context(), s.nc, p, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	relay := journal.NewRelay(j, p.NewProducer(tallyman.ProducerConfig{}), journal.RelayConfig{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(ctx) }()
	if _, err := j.Commit(t.Context(), "a", 0, journal.Decision{Commands: []tallyman.Command{{Kind: "echo"}, {Kind: "echo"}}}); err != nil {
		t.Fatal(err)
	}
	work(t, p, "a/1/1", "a/1/2")
	for relay.Stats().Published == 0 && t.Context().Err() == nil {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.run(t, "audit", "--journal", "--seal").expect(t, 0, "the books balance", "1 decision of 1 run", "the journal balances")
	o := s.run(t, "audit", "--journal", "--json")
	o.expect(t, 0)
	got := o.object(t)["journal"].(map[string]any)
	equal(t, got, "balanced", "true")
	equal(t, got, "decisions", "1")
	equal(t, got, "sealed_through", "1")
	if _, there := s.run(t, "audit", "--json").object(t)["journal"]; there {
		t.Error("the journal was audited without being asked for")
	}
	m := nats.NewMsg("main.journal.b")
	m.Data = []byte("no decision")
	if err := s.nc.PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	s.run(t, "audit", "--journal").expect(t, 6, "sequence 2, of run b, is damaged", `pool "main": the books do not balance: the journal does not balance: 1 damaged decision`)
}
