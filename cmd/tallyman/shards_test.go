package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/journal"
)

// idIn returns an id that begins with prefix and belongs into a shard of three.
func idIn(shard int, prefix string) string {
	for i := 0; ; i++ {
		if id := fmt.Sprintf("%s-%d", prefix, i); dedupe.Shard(command.Token(id), 3) == shard {
			return id
		}
	}
}

// threefold is a scene with a pool of three shards, in each of which lie a
// completed, a parked and a pending command.
func threefold(t *testing.T) (s *scene, p *tallyman.Pool, done, parked, waits []string) {
	t.Helper()
	s = newScene(t)
	s.run(t, "init", "--shards", "3", "--queue", "default", "--queue", "slow").expect(t, 0, "shards", "default slow")
	p = s.pool(t)
	for i := range 3 {
		done, parked, waits = append(done, idIn(i, "done")), append(parked, idIn(i, "parked")), append(waits, idIn(i, "waits"))
		submit(t, p, tallyman.Command{ID: done[i], Kind: "echo", Payload: []byte(done[i])})
		submit(t, p, tallyman.Command{ID: parked[i], Kind: "bad", Payload: []byte(parked[i])})
	}
	work(t, p, append(append([]string{}, done...), parked...)...)
	emptied(t, p)
	for _, id := range waits {
		submit(t, p, tallyman.Command{ID: id, Kind: "echo", Queue: "slow"})
	}
	return s, p, done, parked, waits
}

// emptied waits until the server has acted on the acks it has got.
func emptied(t *testing.T, p *tallyman.Pool) {
	t.Helper()
	pooltest.Await(t, t.Context(), "empty streams", func() bool {
		for _, at := range p.Shards() {
			if state, err := at.Commands.State(t.Context()); err != nil || state.Messages > 0 {
				return false
			}
		}
		return true
	})
}

func TestShards_Looks(t *testing.T) {
	t.Parallel()
	s, p, done, parked, waits := threefold(t)
	t.Run("status sums up", func(t *testing.T) {
		o := s.run(t, "status", "--json")
		o.expect(t, 0)
		got := o.object(t)
		equal(t, got["settings"].(map[string]any), "shards", "3")
		equal(t, got["stream"].(map[string]any), "commands", "3")
		equal(t, got["states"].(map[string]any), "completed", "3")
		equal(t, got["states"].(map[string]any), "parked", "3")
		slow := got["queues"].([]any)[1].(map[string]any)
		equal(t, slow, "name", "slow")
		equal(t, slow, "pending", "3")
		shards := got["shards"].([]any)
		if len(shards) != 3 {
			t.Fatalf("got %d shards", len(shards))
		}
		second := shards[1].(map[string]any)
		equal(t, second, "shard", "1")
		equal(t, second, "bucket", "main_1")
		equal(t, second["stream"].(map[string]any), "last_seq", "3")
		equal(t, second["states"].(map[string]any), "completed", "1")
		s.run(t, "status").expect(t, 0, "in 3 shards", "shards  ")
	})
	t.Run("lists go through all", func(t *testing.T) {
		s.run(t, "list").expect(t, 0, append(append([]string{}, done...), parked...)...)
		o := s.run(t, "list", "--limit", "4", "--json")
		if n := strings.Count(o.stdout, "\n"); n != 4 {
			t.Errorf("got %d lines, want 4: %s", n, o.stdout)
		}
		s.run(t, "list", "--state", "pending").expect(t, 0, append([]string{"SHARD"}, waits...)...)
		o = s.run(t, "list", "--state", "pending", "--json", "--limit", "2")
		o.expect(t, 0, waits[0], waits[1], `"shard":0`, `"shard":1`)
		s.run(t, "parked").expect(t, 0, parked...)
	})
	t.Run("one command is found where it lies", func(t *testing.T) {
		for i := range 3 {
			s.run(t, "show", done[i]).expect(t, 0, p.Shards()[i].Records.Bucket(), "completed")
			o := s.run(t, "show", waits[i], "--json")
			o.expect(t, 0)
			equal(t, o.object(t), "shard", fmt.Sprint(i))
			s.run(t, "why", done[i]).expect(t, 0, "Completed, and final")
			s.run(t, "why", waits[i], "--scan").expect(t, 0, "no worker has got it yet")
			s.run(t, "wait", done[i]).expect(t, 0, done[i])
		}
		s.run(t, "show", "nobody").expect(t, 1, "never submitted")
	})
	t.Run("what was published by hand waits in the first", func(t *testing.T) {
		id := idIn(2, "by-hand")
		if _, err := s.js(t).Publish(t.Context(), p.Commands().Subject("slow", "echo", command.Token(id)), []byte("x")); err != nil {
			t.Fatal(err)
		}
		o := s.run(t, "show", id, "--json")
		o.expect(t, 0)
		equal(t, o.object(t), "shard", "0")
		s.run(t, "why", id).expect(t, 0, "a worker has to carry it to its own shard first")
		s.run(t, "list", "--state", "pending").expect(t, 0, id)
		s.run(t, "cancel", id).expect(t, 3, "shard 0", "until a worker carries it")
		run(t, s.url, id+"\n", "audit", "--against", "-").expect(t, 0, "the books balance")
	})
}

func TestShards_Acts(t *testing.T) {
	t.Parallel()
	s, p, done, parked, waits := threefold(t)
	s.run(t, append([]string{"requeue"}, parked[:2]...)...).expect(t, 0, "matched 2: 2 requeued")
	s.run(t, "resolve", parked[2], "--result", "by hand").expect(t, 0, "resolved")
	s.run(t, "wait", parked[2]).expect(t, 0, "by hand")
	s.run(t, "requeue", done[1]).expect(t, 3, "receipt")
	s.run(t, append([]string{"cancel"}, waits...)...).expect(t, 0, "cancelled")
	work(t, p, parked...) // they end up parked again
	emptied(t, p)
	s.run(t, "requeue", "--all", "--dry-run").expect(t, 0, "2 would be requeued")
	s.run(t, "discard", "--all").expect(t, 0, "matched 2: 2 discarded")

	t.Run("a queue stands in every shard", func(t *testing.T) {
		s.run(t, "pause", "slow", "--as", "ann", "--for", "1h").expect(t, 0, "paused")
		for _, at := range p.Shards() {
			if q, err := at.Commands.Queue(t.Context(), "slow"); err != nil || !q.Paused {
				t.Errorf("shard %d: got %+v, %v, want it paused", at.Index, q, err)
			}
		}
		s.run(t, "status").expect(t, 0, "paused by ann")
		if err := p.Shards()[1].Commands.Resume(t.Context(), "slow"); err != nil {
			t.Fatal(err)
		}
		s.run(t, "status").expect(t, 0, "paused in 2 of 3 shards")
		s.run(t, "resume", "slow").expect(t, 0, "delivers")
		for _, at := range p.Shards() {
			if q, err := at.Commands.Queue(t.Context(), "slow"); err != nil || q.Paused {
				t.Errorf("shard %d: got %+v, %v, want it to deliver", at.Index, q, err)
			}
		}
	})
	t.Run("a key names its shard", func(t *testing.T) {
		second := p.Shards()[1]
		id := idIn(1, "conflict")
		submit(t, p, tallyman.Command{ID: id, Kind: "echo", Payload: []byte("one")})
		work(t, p, id)
		emptied(t, p)
		other := nats.NewMsg(second.Commands.Subject("default", "echo", command.Token(id)))
		other.Data = []byte("another")
		ack, err := s.js(t).PublishMsg(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		last := idIn(1, "last") // behind it
		submit(t, p, tallyman.Command{ID: last, Kind: "echo"})
		work(t, p, last)
		emptied(t, p)
		key := fmt.Sprintf("_conflict/%d", ack.Sequence)
		s.run(t, "parked").expect(t, 0, id+" (1:"+key+")")
		s.run(t, "parked", "--json").expect(t, 0, `"key":"1:`+key+`"`)
		s.run(t, "show", "1:"+key).expect(t, 0, "main_1", "conflict")
		s.run(t, "why", "1:"+key).expect(t, 0, "1:"+key+" is parked", fmt.Sprintf("Sequence %d was stored", ack.Sequence), "with the id "+strconv.Quote(id), "which is completed", "A person may discard it.")
		s.run(t, "why", id).expect(t, 0, "under 1:"+key)
		for _, act := range []string{"show", "why", "cancel"} {
			s.run(t, act, key).expect(t, 1, "say the shard", "0:"+key)
		}
		s.run(t, "why", "2:"+key).expect(t, 1, "nothing was parked under that key of bucket main_2")
		s.run(t, "cancel", "1:"+key).expect(t, 3, "parked aside, since its id stands for another command", "discard it, or submit it under another id")
		s.run(t, "discard", key).expect(t, 1, "say the shard", "0:"+key)
		s.run(t, "discard", "2:"+key).expect(t, 1, "not found")
		s.run(t, "requeue", "1:"+key).expect(t, 3, "its id stands for another command")
		s.run(t, "discard", "1:"+key).expect(t, 0, "matched 1: 1 discarded")
	})
	s.run(t, "audit").expect(t, 0, "the books balance", "in 3 shards")
}

// What lies where no worker can get it is named with what to do.
func TestShards_StatusOfWhatNobodyGets(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init", "--shards", "3").expect(t, 0)
	p := s.pool(t)
	for _, subject := range []string{"main_2.commands.bad!queue.echo.a", "main_1.commands.bad!queue.echo.a", "main_2.commands.other.echo.a"} {
		if _, err := s.js(t).Publish(t.Context(), subject, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, "status").expect(t, 0, "run: tallyman init --pool main --queue other",
		"queue bad!queue holds 2 messages that no worker can get",
		"nats stream purge main_1_commands --subject 'main_1.commands.bad!queue.>' and nats stream purge main_2_commands --subject 'main_2.commands.bad!queue.>'")
	// The remedies are ones.
	s.run(t, "init", "--queue", "other").expect(t, 0)
	for _, at := range p.Shards()[1:] {
		str, err := s.js(t).Stream(t.Context(), at.Commands.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := str.Purge(t.Context(), jetstream.WithPurgeSubject(at.Commands.Subjects("bad!queue"))); err != nil {
			t.Fatal(err)
		}
	}
	o := s.run(t, "status")
	o.expect(t, 0)
	if strings.Contains(o.stdout, "bad!queue") || strings.Contains(o.stdout, "no consumer") || strings.Contains(o.stdout, "that no queue delivers") {
		t.Errorf("after that: got %s", o.stdout)
	}
	// A consumer that was set to a later sequence has the earlier ones as acked.
	id := idIn(0, "passed") // in another shard, one waits
	submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
	first := p.Shards()[0].Commands
	if _, err := s.js(t).ResetConsumerToSequence(t.Context(), first.Name(), "default", 2); err != nil {
		t.Fatal(err)
	}
	s.run(t, "status").expect(t, 0, "the stream holds 1 command that no queue delivers; tallyman audit says why")
	s.run(t, "audit").expect(t, 6, "lingering", `lingering in shard 0: sequence 1 "`+id+`"`, "nats consumer rm main_commands default")
	s.run(t, "why", id).expect(t, 0, "no worker gets it any more: ask the audit")
}

func TestShards_Books(t *testing.T) {
	t.Parallel()
	s, p, done, parked, waits := threefold(t)
	list := strings.Join(append(append(append([]string{}, done...), parked...), waits...), "\n")
	o := run(t, s.url, list, "audit", "--against", "-", "--seal", "--json")
	o.expect(t, 0)
	got := o.object(t)
	equal(t, got, "balanced", "true")
	equal(t, got, "last_seq", "9")
	equal(t, got, "sealed_through", "6")
	equal(t, got, "completed", "3")
	equal(t, got, "compared", "9")
	if shards := got["shards"].([]any); len(shards) != 3 {
		t.Errorf("got %d shards, want 3", len(shards))
	} else {
		equal(t, shards[2].(map[string]any), "shard", "2")
		equal(t, shards[2].(map[string]any), "sealed_through", "2")
	}
	s.run(t, "audit").expect(t, 0, "shards ", "sequences", "in 3 shards")

	// One is taken out of a stream by hand, another one's record lies elsewhere.
	stored, err := p.Shards()[2].Commands.Find(t.Context(), command.Token(waits[2]))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Shards()[2].Commands.Remove(t.Context(), stored.Seq); err != nil {
		t.Fatal(err)
	}
	e, err := p.Shards()[0].Records.Read(t.Context(), command.Token(done[0]))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Shards()[1].Records.PutWait(t.Context(), command.Token(done[0]), e.Raw, 0); err != nil {
		t.Fatal(err)
	}
	o = run(t, s.url, list, "audit", "--against", "-")
	o.expect(t, 6, "missing in shard 2: sequence 3", "misplaced in shard 1:", "tallyman reshard --shards 3", "shard 2: 1 missing; 1 of 9 ids of the list missing", fmt.Sprintf("%q in shard 2:", waits[2]))
	// Those of the list are summed up for the pool as a whole.
	var gone strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&gone, "{\"id\":\"gone-%d\",\"sequence\":9}\n", i)
	}
	o = run(t, s.url, gone.String(), "audit", "--against", "-")
	o.expect(t, 6, "missing ids", "the stream of shard 1 ends at sequence 3", "and 500 more", "1500 of 1500 ids of the list missing")
	o = s.run(t, "audit", "--json")
	got = o.object(t)
	equal(t, got, "missing_count", "1")
	equal(t, got, "misplaced_count", "1")
	equal(t, got["findings"].([]any)[0].(map[string]any), "shard", "1")
}

func TestShards_Reshard(t *testing.T) {
	t.Parallel()
	s, _, done, parked, waits := threefold(t)
	s.run(t, "reshard").expect(t, 2, "--shards")
	s.run(t, "reshard", "--shards", "0").expect(t, 2, "give 1 to 256")
	s.run(t, "init", "--shards", "2").expect(t, 1, "tallyman reshard")
	s.run(t, "reshard", "--shards", "1").expect(t, 1, "holds 1 command:")
	s.run(t, append([]string{"cancel"}, waits...)...).expect(t, 0)
	s.run(t, "reshard", "--shards", "1").expect(t, 1, "tallyman audit --seal")
	s.run(t, "audit", "--seal").expect(t, 0)
	o := s.run(t, "reshard", "--shards", "1", "--as", "ann", "--json")
	o.expect(t, 0)
	equal(t, o.object(t), "from", "3")
	equal(t, o.object(t), "to", "1")
	s.run(t, "status").expect(t, 0, "last sequence ")
	s.run(t, "show", done[2]).expect(t, 0, "completed")
	s.run(t, "why", parked[1]).expect(t, 0, "ann carried its record into another shard", "from shard 1 of 3 to shard 0 of 1")
	s.run(t, "reshard", "--shards", "2").expect(t, 0, "has 2 shards, it had 1")
	s.run(t, "requeue", "--all").expect(t, 0, "3 requeued")
	s.run(t, "audit").expect(t, 0, "in 2 shards")
}

func TestShards_Journal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init", "--shards", "3", "--journal").expect(t, 0)
	p := s.pool(t)
	j, err := journal.Open(t.Context(), s.nc, p, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // never fails
	var commands []tallyman.Command
	var ids []string
	for i := range 3 {
		ids = append(ids, idIn(i, "step"))
		commands = append(commands, tallyman.Command{ID: ids[i], Kind: "echo"})
	}
	if _, err := j.Commit(t.Context(), "trip", 0, journal.Decision{Commands: commands}); err != nil {
		t.Fatal(err)
	}
	relay := journal.NewRelay(j, p.NewProducer(tallyman.ProducerConfig{}), journal.RelayConfig{})
	stop := pooltest.Run(t, relay.Run)
	work(t, p, ids...)
	pooltest.Await(t, t.Context(), "a decision that is published", func() bool { return relay.Stats().Published == 1 })
	stop()
	s.run(t, "audit", "--journal").expect(t, 0, "the journal balances", "in 3 shards")
	for i, id := range ids {
		if err := p.Shards()[i].Records.GiveUp(t.Context(), command.Token(id), revision(t, p, id)); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, "audit", "--journal").expect(t, 6, "3 missing commands")
}

func revision(t *testing.T, p *tallyman.Pool, id string) uint64 {
	t.Helper()
	r, err := p.Find(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r.Revision
}

func TestChange_NamesItsShard(t *testing.T) {
	t.Parallel()
	c := tallyman.Change{ID: "a", Key: "_conflict/7", Shard: 2, Revision: 9}
	if v := changeOf(c, 3); v.Key != "2:_conflict/7" || v.Shard == nil || *v.Shard != 2 {
		t.Errorf("of three: got %+v", v)
	}
	if got := changeLine(c, 3); !strings.Contains(got, "under 2:_conflict/7") {
		t.Errorf("of three: got %q", got)
	}
	c.Shard = 0
	if v := changeOf(c, 1); v.Key != "_conflict/7" || v.Shard != nil {
		t.Errorf("of one: got %+v", v)
	}
	if got := changeLine(c, 1); !strings.Contains(got, "under _conflict/7") {
		t.Errorf("of one: got %q", got)
	}
}

// TestShards_AuditWhileTheyChange makes an audit with the number of shards that
// the pool had when it was opened.
func TestShards_AuditWhileTheyChange(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init", "--shards", "2").expect(t, 0)
	before := s.pool(t)
	for i := range 10 {
		submit(t, before, tallyman.Command{ID: fmt.Sprint(i), Kind: "echo"})
	}
	work(t, before, "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	emptied(t, before)
	s.run(t, "audit", "--seal").expect(t, 0)
	list := func(yield func(audit.Accepted, error) bool) {
		for i := range 10 {
			if !yield(audit.Accepted{ID: fmt.Sprint(i)}, nil) {
				return
			}
		}
	}
	common := &cli.Common{Pool: "main"}
	if r, err := auditPool(t.Context(), common, s.nc, before, audit.Options{Against: list}); err != nil || !r.Balanced {
		t.Errorf("with the number that holds: got %+v, %v", r, err)
	}
	s.run(t, "reshard", "--shards", "3").expect(t, 0)
	r, err := auditPool(t.Context(), common, s.nc, before, audit.Options{Against: list})
	if !errors.Is(err, tallyman.ErrSettings) || !strings.Contains(err.Error(), "audit again") {
		t.Errorf("with another: got %v, %v; want that the pool was spread anew", r.MissingIDs, err)
	}
	s.run(t, "audit").expect(t, 0)
}
