package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/journal"

	"github.com/nats-io/nats.go/jetstream"
)

func TestCommit_Ambiguous(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const write = "PUB main.journal." // how a commit begins on the wire, HPUB included
	wired := func(t *testing.T) (*party, *cable) {
		t.Helper()
		c := &cable{}
		return r.join(t, nats.SetCustomDialer(c)), c
	}
	t.Run("a write whose answer got lost is found, and not written again", func(t *testing.T) {
		p, c := wired(t)
		c.on(write, true, false)
		done, err := p.Commit(r.ctx, "lost-answer", 0, events("a"))
		if err != nil || done.Seq != 1 {
			t.Fatalf("got %+v, %v", done, err)
		}
		if got, want := r.history(t, "lost-answer"), []string{"1.1 a "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a write that got lost is written", func(t *testing.T) {
		p, c := wired(t)
		c.on(write, false, false)
		if done, err := p.Commit(r.ctx, "lost-write", 0, events("a")); err != nil || done.Seq != 1 || done.Absorbed {
			t.Fatalf("got %+v, %v", done, err)
		}
		if got, want := r.history(t, "lost-write"), []string{"1.1 a "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a write that got lost is a conflict if somebody else was faster", func(t *testing.T) {
		p, c := wired(t)
		c.on(write, false, true)
		errs := make(chan error, 1)
		go func() {
			_, err := p.Commit(r.ctx, "overtaken", 0, events("ours"))
			errs <- err
		}()
		r.eventually(t, "a cut cable", func() bool { return !p.nc.IsConnected() })
		r.commit(t, "overtaken", 0, events("theirs"))
		r.commit(t, "overtaken", 1, events("theirs"))
		c.mend()
		if err := <-errs; !errors.Is(err, journal.ErrConflict) {
			t.Errorf("got %v, want ErrConflict", err)
		}
		if got, want := r.history(t, "overtaken"), []string{"1.1 theirs ", "2.1 theirs "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a write whose answer got lost is found under what others added", func(t *testing.T) {
		p, c := wired(t)
		c.on(write, true, true)
		type answer struct {
			done journal.Committed
			err  error
		}
		answers := make(chan answer, 1)
		go func() {
			done, err := p.Commit(r.ctx, "buried", 0, events("ours"))
			answers <- answer{done, err}
		}()
		r.eventually(t, "the write", func() bool {
			n, err := r.Replay(r.ctx, "buried", func(journal.Recorded) error { return nil })
			return err == nil && n == 1
		})
		for n := range uint64(3) {
			r.commit(t, "buried", 1+n, events("theirs"))
		}
		c.mend()
		if a := <-answers; a.err != nil || a.done.Seq != 1 {
			t.Errorf("got %+v, %v", a.done, a.err)
		}
		if got := r.history(t, "buried"); len(got) != 4 || got[0] != "1.1 ours " {
			t.Errorf("got %q", got)
		}
	})
	for _, reaches := range []bool{true, false} {
		t.Run(fmt.Sprintf("what cannot be known is unconfirmed, and safe to repeat; written: %v", reaches), func(t *testing.T) {
			p, c := wired(t)
			run := fmt.Sprintf("unknown-%v", reaches)
			c.on(write, reaches, true)
			ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
			defer cancel()
			d := events("a")
			d.Commands = []tallyman.Command{step("", "p")}
			done, err := p.Commit(ctx, run, 0, d)
			if !errors.Is(err, journal.ErrUnconfirmed) || done.ID == "" {
				t.Fatalf("got %+v, %v; want ErrUnconfirmed with the commit id", done, err)
			}
			c.mend()
			d.ID = done.ID
			again, err := p.Commit(r.ctx, run, 0, d)
			if err != nil || again.Seq != 1 || again.Absorbed != reaches {
				t.Errorf("repeated: %+v, %v", again, err)
			}
			if got, want := r.history(t, run), []string{"1.1 a "}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	t.Run("a commit whose context is over writes nothing", func(t *testing.T) {
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		for n := range uint64(2) { // for a run that is not remembered, and one that is
			_, err := r.Commit(ctx, "over", n, events("a"))
			if !errors.Is(err, context.Canceled) || !errors.Is(err, journal.ErrUnavailable) || errors.Is(err, journal.ErrUnconfirmed) {
				t.Errorf("got %v, want ErrUnavailable and the reason", err)
			}
			r.commit(t, "over", n, events("b"))
		}
		if got, want := r.history(t, "over"), []string{"1.1 b ", "2.1 b "}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("a commit that never left wrote nothing, and says so", func(t *testing.T) {
		p, c := wired(t)
		c.on("PING", false, true)
		_ = p.nc.FlushTimeout(time.Second) // breaks the connection
		r.eventually(t, "a cut cable", func() bool { return !p.nc.IsConnected() })
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		defer cancel()
		_, err := p.Commit(ctx, "never", 0, events("a"))
		if !errors.Is(err, journal.ErrUnavailable) || errors.Is(err, journal.ErrUnconfirmed) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		c.mend()
		if got := r.history(t, "never"); len(got) != 0 {
			t.Errorf("it was written: %q", got)
		}
	})
	r.audit(t)
}

// What the server says later for good does not say what became of an earlier try.
func TestCommit_RefusedAfterAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := &cable{}
	p := r.join(t, nats.SetCustomDialer(c))
	c.on("PUB main.journal.", true, true)
	ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
	defer cancel()
	errs := make(chan error, 1)
	go func() {
		_, err := p.Commit(ctx, "run", 0, events("a"))
		errs <- err
	}()
	// Not by history, whose two readings the write may fall between.
	r.eventually(t, "the write", func() bool {
		n, err := r.Replay(r.ctx, "run", func(journal.Recorded) error { return nil })
		return err == nil && n == 1
	})
	if err := r.js.DeleteStream(r.ctx, "main_journal"); err != nil {
		t.Fatal(err)
	}
	c.mend()
	if err := <-errs; !errors.Is(err, journal.ErrUnconfirmed) {
		t.Errorf("got %v, want %v: it was written", err, journal.ErrUnconfirmed)
	}
}

// writers commit numbered events to runs of their own, as fast as they can,
// until told to stop; each commit that fails without an answer is repeated
// under its commit id.
func writers(ctx context.Context, parties []*party, stop <-chan struct{}) (counts []uint64, errs []error) {
	counts, errs = make([]uint64, len(parties)), make([]error, len(parties))
	var wg sync.WaitGroup
	for w, p := range parties {
		wg.Go(func() {
			for n := uint64(0); ; n++ {
				select {
				case <-stop:
					counts[w] = n
					return
				default:
				}
				d := events(fmt.Sprintf("n %d", n))
				d.ID = fmt.Sprint("commit ", n)
				for {
					bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
					done, err := p.Commit(bounded, fmt.Sprint("run-", w), n, d)
					cancel()
					if err == nil && done.Seq == n+1 {
						break
					}
					if ctx.Err() == nil && (errors.Is(err, journal.ErrUnconfirmed) || errors.Is(err, journal.ErrUnavailable)) {
						continue
					}
					errs[w] = fmt.Errorf("decision %d: %+v, %w", n+1, done, err)
					return
				}
			}
		})
	}
	wg.Wait()
	return counts, errs
}

// whole checks that every run holds exactly what its writer wrote.
func (r *rig) whole(t *testing.T, p *party, counts []uint64, errs []error) {
	t.Helper()
	for w, count := range counts {
		if errs[w] != nil {
			t.Errorf("writer %d: %v", w, errs[w])
			continue
		}
		next := uint64(0)
		n, err := p.Replay(r.ctx, fmt.Sprint("run-", w), func(ev journal.Recorded) error {
			if want := fmt.Sprint(next); string(ev.Data) != want {
				return fmt.Errorf("event %s, want %s", ev.Data, want)
			}
			next++
			return nil
		})
		if err != nil || n != count {
			t.Errorf("run %d: %d decisions, %v; want %d", w, n, err, count)
		}
		if count == 0 {
			t.Errorf("writer %d wrote nothing: the test shows nothing", w)
		}
	}
}

func TestCommit_ServerRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	parties := []*party{r.join(t), r.join(t), r.join(t)}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		for range 4 {
			before, err := r.Status(r.ctx)
			if err != nil {
				t.Error(err)
				return
			}
			r.server.Kill()
			if err := r.server.Restart(); err != nil {
				t.Error(err)
				return
			}
			// Go on until something was written since.
			if !r.await(func() bool {
				s, err := r.Status(r.ctx)
				return err == nil && s.LastSeq > before.LastSeq+10
			}) {
				t.Error("waited in vain for progress after a restart")
				return
			}
		}
	}()
	counts, errs := writers(r.ctx, parties, stop)
	r.whole(t, r.party, counts, errs)
	r.audit(t)
}

func TestCommit_ClusterLosesServers(t *testing.T) {
	t.Parallel()
	c, err := embedded.StartCluster(3, embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx := pooltest.Context(t)
	nc := connect(t, c.URL())
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	pooltest.Make(t, ctx, nc, tallyman.Settings{}, tallyman.Topology{Replicas: 3})
	pooltest.Await(t, ctx, "a leader that makes the journal", func() bool {
		err := journal.Create(ctx, nc, journal.Config{Pool: "main"})
		if err != nil && !errors.Is(err, pipeline.ErrNoResponders) {
			t.Fatal(err)
		}
		return err == nil
	})
	r := &rig{raw: nc, js: js, ctx: ctx}
	r.party = joinAt(t, ctx, c.URL())
	if str, err := js.Stream(t.Context(), journal.Name("main")); err != nil || str.CachedInfo().Config.Replicas != 3 {
		t.Fatalf("the journal does not have the replicas of its pool: %v", err)
	}
	parties := []*party{joinAt(t, ctx, c.URL()), joinAt(t, ctx, c.URL())}
	stop := make(chan struct{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	go func() {
		defer close(stop)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 2 {
			victim := random.IntN(3)
			c.Kill(victim)
			last := uint64(0)
			if !r.await(func() bool {
				s, err := r.Status(ctx)
				if err == nil && last == 0 {
					last = s.LastSeq
				}
				return err == nil && s.LastSeq > last+10
			}) {
				t.Error("waited in vain for progress with two servers")
				return
			}
			if err := c.Restart(victim); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	counts, errs := writers(ctx, parties, stop)
	r.whole(t, r.party, counts, errs)
	r.audit(t)
}
