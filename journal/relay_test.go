package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/journal"
	"github.com/tallyman-go/tallyman/kvstate"
)

// order makes a decision with n commands of kind "step".
func order(event string, n int) journal.Decision {
	d := events(event)
	for i := range n {
		d.Commands = append(d.Commands, step("", fmt.Sprint("payload ", i)))
	}
	return d
}

func TestRelay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := r.work(t)
	// Committed before any relay exists: a crash between the two changes nothing.
	var want []string
	for i := range 20 {
		done := r.commit(t, fmt.Sprint("run-", i), 0, order("opened", i%4))
		want = append(want, done.Commands...)
	}
	r.eventually(t, "the consumer to count what waits", func() bool {
		s, err := r.Status(r.ctx)
		return err == nil && s.Unpublished == 20 && s.Outstanding == 0 && s.PublishedThrough == 0 && s.OldestAge > 0
	})
	parties := []*party{r.join(t), r.join(t), r.join(t)}
	var relays []*journal.Relay
	for _, p := range parties {
		rel, _ := relay(t, p, p.producer(t), journal.RelayConfig{Window: 2})
		relays = append(relays, rel)
	}
	for i := range 20 {
		done := r.commit(t, fmt.Sprint("run-", i), 1, order("went on", 2))
		want = append(want, done.Commands...)
	}
	for _, id := range want {
		if receipt, err := r.pool.Wait(r.ctx, id); err != nil || !strings.HasPrefix(string(receipt.Result), "payload ") {
			t.Errorf("command %q: %+v, %v", id, receipt, err)
		}
		if n := ran.count(id); n != 1 {
			t.Errorf("command %q ran %d times", id, n)
		}
	}
	r.published(t)
	var got journal.RelayStats
	for _, rel := range relays {
		s := rel.Stats()
		got.Published += s.Published
		got.Commands += s.Commands
		got.Refused += s.Refused + s.Retried + s.Damaged
	}
	if got.Published != 40 || got.Commands != uint64(len(want)) || got.Refused != 0 {
		t.Errorf("got %+v for %d commands", got, len(want))
	}
	if a := r.audit(t); a.Commands != uint64(len(want)) || a.UnpublishedCount != 0 || a.PublishedThrough != 40 {
		t.Errorf("got %+v", a)
	}
}

// holding is a submitter whose outcomes wait until they are let go.
type holding struct {
	*tallyman.Producer
	submitted atomic.Int32
	confirmed atomic.Int32
	letGo     chan struct{}
	wait      sync.WaitGroup
}

func (h *holding) SubmitAsync(ctx context.Context, c command.Command, done func(tallyman.Submission, error)) error {
	h.submitted.Add(1)
	return h.Producer.SubmitAsync(ctx, c, func(s tallyman.Submission, err error) {
		h.confirmed.Add(1)
		h.wait.Go(func() {
			<-h.letGo
			done(s, err)
		})
	})
}

func TestRelay_FrozenAndThawed(t *testing.T) {
	t.Parallel()
	// What comes again may come to the frozen one again: the lease runs out some times.
	r := newRigWith(t, tallyman.Settings{}, tallyman.Topology{}, journal.Config{Lease: 2 * time.Second})
	ran := r.work(t)
	frozen := r.join(t)
	h := &holding{Producer: frozen.producer(t), letGo: make(chan struct{})}
	first, stopFirst := relay(t, frozen, h, journal.RelayConfig{})
	done := r.commit(t, "a", 0, order("opened", 3))
	r.eventually(t, "submissions of the first relay", func() bool { return h.confirmed.Load() == 3 })
	// Its lease runs out, and another one takes over.
	other := r.join(t)
	second, _ := relay(t, other, other.producer(t), journal.RelayConfig{})
	r.published(t)
	if s := second.Stats(); s.Published != 1 || s.Commands != 3 {
		t.Errorf("the second relay: %+v", s)
	}
	next := r.commit(t, "b", 0, order("opened", 1))
	r.published(t)
	// Thawed, the first one says that the decision is published. So it is.
	close(h.letGo)
	r.eventually(t, "the first relay's ack", func() bool { return first.Stats().Published >= 1 })
	stopFirst()
	h.wait.Wait()
	third := r.commit(t, "c", 0, order("opened", 1))
	for _, id := range append(append(done.Commands, next.Commands...), third.Commands...) {
		if _, err := r.pool.Wait(r.ctx, id); err != nil {
			t.Errorf("command %q: %v", id, err)
		}
		if n := ran.count(id); n != 1 {
			t.Errorf("command %q ran %d times", id, n)
		}
	}
	r.published(t)
	r.audit(t)
}

func TestRelay_DiesBetweenPublishAndAck(t *testing.T) {
	t.Parallel()
	r := newMortalRig(t)
	ran := r.work(t)
	dying := r.join(t)
	h := &holding{Producer: dying.producer(t), letGo: make(chan struct{})}
	rel := journal.NewRelay(dying.Journal, h, journal.RelayConfig{Logger: silent})
	ended := make(chan error, 1)
	go func() { ended <- rel.Run(context.Background()) }()
	done := r.commit(t, "a", 0, order("opened", 5))
	r.eventually(t, "submissions of the relay", func() bool { return h.confirmed.Load() == 5 })
	dying.nc.Close() // nothing of it reaches the server any more
	close(h.letGo)
	h.wait.Wait()
	if err := <-ended; !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("its Run ended with %v, want ErrConnectionClosed", err)
	}
	if s, err := r.Status(r.ctx); err != nil || s.Unpublished != 1 {
		t.Errorf("got %+v, %v; want one decision unpublished", s, err)
	}
	heir := r.join(t)
	relay(t, heir, heir.producer(t), journal.RelayConfig{})
	r.published(t)
	for _, id := range done.Commands {
		if _, err := r.pool.Wait(r.ctx, id); err != nil || ran.count(id) != 1 {
			t.Errorf("command %q ran %d times, %v", id, ran.count(id), err)
		}
	}
	r.audit(t)
}

func TestRelay_RefusedForGood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.pool.Submit(r.ctx, step("taken", "by another act")); err != nil {
		t.Fatal(err)
	}
	d := order("opened", 2)
	d.Commands = append(d.Commands, step("taken", "for something else"))
	done := r.commit(t, "a", 0, d)
	other := r.commit(t, "b", 0, order("opened", 1))
	rel, _ := relay(t, r.party, r.producer(t), journal.RelayConfig{})
	r.published(t) // the others, and the rest of the decision, are not held up
	if s := rel.Stats(); s.Refused != 1 || s.Published != 2 || s.Retried != 0 {
		t.Errorf("got %+v", s)
	}
	r.work(t)
	for _, id := range append(done.Commands[:2], other.Commands...) {
		if _, err := r.pool.Wait(r.ctx, id); err != nil {
			t.Errorf("command %q: %v", id, err)
		}
	}
	if receipt, err := r.pool.Wait(r.ctx, "taken"); err != nil || string(receipt.Result) != "by another act" {
		t.Errorf("the first act: %+v, %v", receipt, err)
	}
	// It lies on the operator's desk, whole, and says where it comes from.
	var parked []*kvstate.Record
	if err := r.pool.Records().Scan(r.ctx, func(e kvstate.Entry) error {
		if e.Record != nil && e.Record.State == kvstate.Parked {
			parked = append(parked, e.Record)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(parked) != 1 {
		t.Fatalf("%d parked records, want 1", len(parked))
	}
	if p := parked[0]; p.ID != "taken" || p.Reason != kvstate.ReasonConflict || string(p.Command.Payload) != "for something else" || !strings.Contains(p.Error, `decision 1 of run "a"`) {
		t.Errorf("got %+v", p)
	}
	a := r.audit(t)
	want := journal.Refused{Run: "a", Seq: 1, ID: "taken", Key: "_conflict/_journal/a/1/3", State: kvstate.Parked, Reason: kvstate.ReasonConflict}
	if a.RefusedCount != 1 || a.Refused[0] != want || a.Commands != 4 {
		t.Errorf("got %+v, want %+v", a, want)
	}
}

func TestRelay_FullPool(t *testing.T) {
	t.Parallel()
	r := newRigWith(t, tallyman.Settings{}, tallyman.Topology{MaxCommands: 3}, journal.Config{Lease: 20 * time.Second})
	done := r.commit(t, "a", 0, order("opened", 6))
	to := &counting{Producer: r.pool.NewProducer(tallyman.ProducerConfig{Confirm: time.Second})}
	t.Cleanup(func() { _ = to.Close(context.Background()) })
	rel, _ := relay(t, r.party, to, journal.RelayConfig{RetryMin: 300 * time.Millisecond, RetryMax: 300 * time.Millisecond})
	r.eventually(t, "a decision given back twice", func() bool { return rel.Stats().Retried >= 2 })
	if s := rel.Stats(); s.Published != 0 || to.n.Load() > 6*(int32(s.Retried)+2) {
		t.Errorf("%d submissions for %+v", to.n.Load(), s)
	}
	if a, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{}); err != nil || !a.Balanced || a.UnpublishedCount != 1 || a.Unpublished[0] != (journal.Place{Run: "a", Seq: 1}) {
		t.Errorf("got %+v, %v", a, err)
	}
	ran := r.work(t) // makes room
	for _, id := range done.Commands {
		if _, err := r.pool.Wait(r.ctx, id); err != nil || ran.count(id) != 1 {
			t.Errorf("command %q ran %d times, %v", id, ran.count(id), err)
		}
	}
	r.published(t)
	if s := rel.Stats(); s.Published != 1 || s.Refused != 0 {
		t.Errorf("got %+v", s)
	}
	r.audit(t)
}

type counting struct {
	*tallyman.Producer
	n atomic.Int32
}

func (c *counting) SubmitAsync(ctx context.Context, cmd command.Command, done func(tallyman.Submission, error)) error {
	c.n.Add(1)
	return c.Producer.SubmitAsync(ctx, cmd, done)
}

func TestRelay_DamagedDecision(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := nats.NewMsg("main.journal.odd")
	m.Data = []byte("no decision at all")
	if _, err := r.js.PublishMsg(r.ctx, m); err != nil {
		t.Fatal(err)
	}
	done := r.commit(t, "a", 0, order("opened", 2))
	rel, _ := relay(t, r.party, r.producer(t), journal.RelayConfig{})
	ran := r.work(t)
	for _, id := range done.Commands {
		if _, err := r.pool.Wait(r.ctx, id); err != nil || ran.count(id) != 1 {
			t.Errorf("command %q ran %d times, %v", id, ran.count(id), err)
		}
	}
	r.eventually(t, "the damaged one to be seen", func() bool { return rel.Stats().Damaged == 1 })
	a, err := journal.Audit(r.ctx, r.Journal, journal.AuditOptions{})
	if err != nil || a.Balanced || len(a.Damaged) != 1 || a.Damaged[0].Token != "odd" || a.Damaged[0].StreamSeq != 1 {
		t.Errorf("got %+v, %v", a, err)
	}
	if _, err := r.Commit(r.ctx, "odd", 0, events("a")); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("commit on top of damage: %v, want ErrDamaged", err)
	}
	if _, err := r.Replay(r.ctx, "odd", func(journal.Recorded) error { return nil }); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("replay of damage: %v, want ErrDamaged", err)
	}
}

func TestRelay_ServerRestarts(t *testing.T) {
	t.Parallel()
	r := newMortalRig(t)
	ran := r.work(t)
	relay(t, r.party, r.producer(t), journal.RelayConfig{RetryMin: 50 * time.Millisecond})
	other := r.join(t)
	relay(t, other, other.producer(t), journal.RelayConfig{RetryMin: 50 * time.Millisecond})
	var want []string
	for i := range 3 {
		for n := range 30 {
			done := r.commit(t, fmt.Sprintf("run-%d-%d", i, n), 0, order("opened", 2))
			want = append(want, done.Commands...)
		}
		r.server.Kill()
		if err := r.server.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range want {
		if _, err := r.pool.Wait(r.ctx, id); err != nil {
			t.Errorf("command %q: %v", id, err)
		}
		if ran.count(id) == 0 {
			t.Errorf("command %q has a receipt and never ran", id)
		}
	}
	r.published(t)
	if a := r.audit(t); a.Commands != uint64(len(want)) {
		t.Errorf("got %+v for %d commands", a, len(want))
	}
}

// What relays had noted of a journal that is no more was taken for true of the
// one in its place, once that had grown as long: a consumer that was made again
// began behind decisions that nobody had published.
func TestRelay_LostConsumerOfAReplacedJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(t)
	for n := range uint64(3) {
		r.commit(t, "a", n, order("went on", 1))
	}
	_, stop := relay(t, r.party, r.producer(t), journal.RelayConfig{})
	r.published(t)
	stop() // it notes how far it got
	if err := r.js.DeleteStream(r.ctx, journal.Name("main")); err != nil {
		t.Fatal(err)
	}
	renew := func() {
		t.Helper()
		if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	var want []string
	some := func(from uint64) {
		t.Helper()
		for n := range uint64(4) {
			want = append(want, r.commit(t, "b", from+n, order("went on", 1)).Commands...)
		}
	}
	lose := func() {
		t.Helper()
		if err := r.js.DeleteConsumer(r.ctx, journal.Name("main"), "relay"); err != nil {
			t.Fatal(err)
		}
		renew()
	}
	some(0)
	lose()
	_, stop = relay(t, r.party, r.producer(t), journal.RelayConfig{})
	r.published(t)
	stop()
	some(4)
	lose()
	to := &counting{Producer: r.producer(t)}
	relay(t, r.party, to, journal.RelayConfig{})
	for _, id := range want {
		if _, err := r.pool.Wait(r.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	r.published(t)
	if got := to.n.Load(); got != 4 {
		t.Errorf("%d submissions after the consumer was lost for the second time, want 4", got)
	}
}

func TestRelay_LostConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ran := r.work(t)
	for n := range uint64(5) {
		r.commit(t, "a", n, order("went on", 1))
	}
	_, stop := relay(t, r.party, r.producer(t), journal.RelayConfig{})
	r.published(t)
	stop() // it notes how far it got
	if err := r.js.DeleteConsumer(r.ctx, journal.Name("main"), "relay"); err != nil {
		t.Fatal(err)
	}
	rel := journal.NewRelay(r.Journal, r.producer(t), journal.RelayConfig{Logger: silent})
	if err := rel.Run(r.ctx); !errors.Is(err, journal.ErrNoJournal) || !strings.Contains(err.Error(), "tallyman init --pool main --journal") {
		t.Errorf("a relay without its consumer: %v, want ErrNoJournal and the remedy", err)
	}
	sixth := r.commit(t, "a", 5, order("went on", 1))
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
		t.Fatal(err)
	}
	if err := journal.Create(r.ctx, r.raw, journal.Config{Pool: "main"}); err != nil {
		t.Errorf("again: %v", err)
	}
	to := &counting{Producer: r.producer(t)}
	relay(t, r.party, to, journal.RelayConfig{})
	if _, err := r.pool.Wait(r.ctx, sixth.Commands[0]); err != nil {
		t.Error(err)
	}
	r.published(t)
	// Nothing that was published is submitted again: its receipt might be gone by now.
	if got := to.n.Load(); got != 1 {
		t.Errorf("%d submissions after the consumer was made again, want 1", got)
	}
	if n := ran.count("a/1/1"); n != 1 {
		t.Errorf("the first command ran %d times", n)
	}
	if a := r.audit(t); a.PublishedThrough != 6 || a.Commands != 6 {
		t.Errorf("got %+v", a)
	}
}
