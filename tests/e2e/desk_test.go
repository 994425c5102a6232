//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// operator is the operator's command, ready to start.
func (s *stand) operator(t *testing.T, url string, args ...string) (cmd *exec.Cmd, stdout *bytes.Buffer) {
	t.Helper()
	path, err := operatorProgram()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "NATS_URL="+url, "TALLYMAN_AS=ann")
	stdout = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = stdout, appendTo(t, s.path("workers.log"))
	return cmd, stdout
}

// park puts n commands onto the desk, as workers that failed at them do.
func (s *stand) park(t *testing.T, n int) {
	t.Helper()
	window := make(chan struct{}, 256)
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		failed = err
		mu.Unlock()
	}
	commands := func(yield func(tallyman.Command) bool) {
		for i := range n {
			if !yield(tallyman.Command{ID: fmt.Sprintf("d-%d", i), Kind: "log", Payload: fmt.Appendf(nil, "%d", i)}) {
				return
			}
		}
	}
	all := make([]tallyman.Command, 0, n)
	for c := range commands {
		all = append(all, c)
	}
	producer := s.pool.NewProducer(tallyman.ProducerConfig{})
	err := producer.SubmitMany(t.Context(), commands, func(i int, sub tallyman.Submission, err error) {
		if err != nil {
			fail(err)
			return
		}
		env, err := dedupe.Identify(all[i])
		if err != nil {
			fail(err)
			return
		}
		rec := &kvstate.Record{ID: env.ID, Kind: env.Kind, Queue: env.Queue, Digest: env.Digest, Attempt: 5, Seqs: []uint64{sub.Sequence}}
		rec, err = rec.Advance(kvstate.Parked, "worker-0", string(kvstate.ReasonExhausted), time.Now())
		if err != nil {
			fail(err)
			return
		}
		rec.Reason, rec.Error, rec.Command = kvstate.ReasonExhausted, "the disk was full", &env.Command
		go s.file(window, env.Token, rec, fail)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := producer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "all records to be parked", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil {
			t.Fatal(failed)
		}
		return s.count(t, kvstate.Parked) == n
	})
	str, err := s.js.Stream(t.Context(), stream.Name(tallyman.DefaultPool))
	if err != nil {
		t.Fatal(err)
	}
	if err := str.Purge(t.Context()); err != nil { // their acks
		t.Fatal(err)
	}
}

func (s *stand) file(window chan struct{}, key command.Token, rec *kvstate.Record, fail func(error)) {
	window <- struct{}{}
	err := s.pool.Records().Write(key, rec, func(_ uint64, err error) {
		<-window
		if err != nil {
			fail(err)
		}
	})
	if err != nil {
		<-window
		fail(err)
	}
}

// count returns how many records are in a state.
func (s *stand) count(t *testing.T, state kvstate.State) int {
	t.Helper()
	n := 0
	if err := s.pool.Records().Scan(t.Context(), func(e kvstate.Entry) error {
		if e.Record != nil && e.Record.State == state {
			n++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func (s *stand) audit(t *testing.T) audit.Report {
	t.Helper()
	r, err := audit.Run(t.Context(), s.pool.Commands(), s.pool.Records(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDesk_KilledInTheMiddle kills tallyman requeue --all while it sends
// 10,000 commands back, and runs it again.
func TestDesk_KilledInTheMiddle(t *testing.T) {
	t.Parallel()
	const n = 10_000
	calm := short
	calm.Lease = 30 * time.Second // no machine is so busy that a lease is lost and attempts repeat
	s := newStand(t, calm)
	s.park(t, n)
	if r := s.audit(t); !r.Balanced || r.Parked != n {
		t.Fatalf("to begin with: %+v", r)
	}

	// What it sends after this many bytes never reaches the server.
	way := newLink(t, s.url)
	way.swallow(2 << 20)
	cmd, _ := s.operator(t, way.url(), "requeue", "--all")
	first := launch(t, cmd)
	select {
	case <-way.spent:
	case <-time.After(patience):
		t.Fatal("it has not sent enough")
	}
	first.kill()
	if !first.wasKilled() {
		t.Fatalf("it ended with %v before it was killed", cmd.ProcessState)
	}
	// What has arrived is still being stored.
	var state stream.State
	same := 0
	await(t, "the server to have stored what it got", func() bool {
		before := state
		var err error
		if state, err = s.pool.Commands().State(t.Context()); err != nil {
			t.Fatal(err)
		}
		if same++; state != before {
			same = 0
		}
		return same > 20
	})
	requeued := s.count(t, kvstate.Requeued)
	t.Logf("killed with %d of %d on record as requeued, %d of them in the stream", requeued, n, state.Messages)
	if requeued == 0 || requeued == n || state.Messages == 0 || state.Messages > uint64(requeued) {
		t.Fatalf("that is not the middle, or more than the records say")
	}
	if s.audit(t).Balanced == (state.Messages < uint64(requeued)) {
		t.Errorf("of those that are not in the stream the audit says nothing")
	}

	began := time.Now()
	cmd, stdout := s.operator(t, s.url, "requeue", "--all", "--json")
	second := launch(t, cmd)
	if end := second.waitEnd(t, "it was to requeue all"); !end.Success() {
		t.Fatalf("the second run ended with %v", end)
	}
	t.Logf("the second run took %v", time.Since(began))
	var got struct{ Matched, Requeued, Already, Refused, Failed int }
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatalf("%v in %q", err, stdout)
	}
	if want := n - int(state.Messages); got.Matched != want || got.Requeued != want || got.Already+got.Refused+got.Failed != 0 {
		t.Errorf("got %+v, want %d requeued", got, want)
	}
	if r := s.audit(t); !r.Balanced || r.Pending != n || r.LastSeq != 2*n {
		t.Errorf("sent back: %+v, want each of %d once in the stream", r, n)
	}

	s.worker(t)
	for most := n - n/10; most > 0; most -= n / 10 {
		await(t, fmt.Sprintf("no more than %d to be left", most), func() bool {
			state, err := s.pool.Commands().State(t.Context())
			return err == nil && state.Messages <= uint64(most)
		})
	}
	s.settle(t)
	ran := map[string]int{}
	for _, l := range s.lines(t) {
		if l.what == "effect" {
			ran[l.id]++
			if l.attempt != 1 {
				t.Errorf("%s ran as attempt %d, want 1", l.id, l.attempt)
			}
		}
	}
	for i := range n {
		if id := fmt.Sprintf("d-%d", i); ran[id] != 1 {
			t.Errorf("%s ran %d times, want once", id, ran[id])
		}
	}
	if r := s.audit(t); !r.Balanced || r.Completed != n || r.Absorbed != 0 || r.LastSeq != 2*n {
		t.Errorf("in the end: %+v, want %d completed", r, n)
	}
	for _, f := range append(s.readBooks(t).faults, s.wit.check()...) {
		t.Error(f)
	}
}

// TestDesk_CancelReachesAnotherProcess cancels what runs in a worker process.
func TestDesk_CancelReachesAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newStand(t, short)
	s.worker(t)
	s.submit(t, "gate", "c-1", "never")
	s.awaitLine(t, "begin", "c-1")
	cmd, _ := s.operator(t, s.url, "cancel", "c-1", "--why", "asked for by mistake")
	if end := launch(t, cmd).waitEnd(t, "it was to cancel"); !end.Success() {
		t.Fatalf("cancel ended with %v", end)
	}
	await(t, "the worker to give it up", func() bool { return s.event(t, "c-1", "cancelled") })
	s.submit(t, "log", "c-2", "x")
	s.receipt(t, "c-2")
	s.settle(t)
	if got := len(s.of(t, "effect", "c-1")); got != 0 {
		t.Errorf("got %d effects, want none", got)
	}
	checkBooks(t, s)
}
