package tallyman

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// TestLife takes random steps with one record, on a model of a page and on the
// real codec, transitions, judgement and store, over the double and over a
// server. After each step both must agree on what whoever took it was told, and
// on what is stored. TALLYMAN_SEED repeats a life.
func TestLife(t *testing.T) {
	t.Parallel()
	first, double, server := rand.Uint64N(1<<40), 1000, 40
	if text := os.Getenv("TALLYMAN_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("TALLYMAN_SEED: %v", err)
		}
		first, double, server = seed, 1, 1
	}
	t.Logf("seeds from %d on", first)
	t.Run("on the double", func(t *testing.T) {
		t.Parallel()
		for i := range double {
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{})
				h := s.Connect("somebody", nil)
				brief := h.Records()
				brief.Keep(time.Second)
				live(t, t.Context(), first+uint64(i), h.Records(), brief)
			})
		}
	})
	t.Run("on a server", func(t *testing.T) {
		t.Parallel()
		node, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(node.Close)
		nc, err := Connect(node.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		if err := Create(t.Context(), nc, "main", Settings{}, Topology{}); err != nil {
			t.Fatal(err)
		}
		var pools [2]*Pool
		for i := range pools {
			if pools[i], err = Open(t.Context(), nc, "main"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = pools[i].Close() }) // returns nil
		}
		pools[1].Records().Keep(time.Second)
		for i := range server {
			t.Run(fmt.Sprint("life ", i), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				t.Cleanup(cancel)
				live(t, ctx, first+uint64(i), pools[0].shards[0].records, pools[1].shards[0].records)
			})
		}
	})
}

// being is the real thing beside the model.
type being struct {
	ctx     context.Context
	records records
	brief   records // final records written through it expire at once
	env     command.Envelope
	views   map[string]*sight
	highest uint64 // token so far
}

// sight is what somebody believes to be the record.
type sight struct {
	base     *kvstate.Record // nil if there was none
	revision uint64
	attempt  int
	mine     bool
}

// live takes the steps of one seed.
func live(t *testing.T, ctx context.Context, seed uint64, records, brief records) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 4))
	env, err := dedupe.Identify(Command{ID: fmt.Sprint("life-", seed), Kind: "k", Queue: command.DefaultQueue})
	if err != nil {
		t.Fatal(err)
	}
	m := &lifeModel{views: map[string]lifeView{}}
	b := &being{ctx: ctx, records: records, brief: brief, env: env, views: map[string]*sight{}}
	var told []string
	expiries := 0
	for range 60 {
		step := lifeStep{
			who:  []string{"w1", "w2", "w3", "op"}[rng.IntN(4)],
			what: []string{"deliver", "deliver", "progress", "progress", "prepare", "complete", "fail", "park", "crash"}[rng.IntN(9)],
			n:    rng.IntN(3),
		}
		if step.who == "op" {
			step.what = []string{"look", "look", "requeue", "requeue", "cancel", "resolve", "discard"}[rng.IntN(7)]
		}
		step.brief = expiries < 2 && rng.IntN(3) == 0
		want := m.do(step)
		got, err := b.do(step)
		if err != nil {
			t.Fatalf("TALLYMAN_SEED=%d: %s: %v\n%s", seed, step, err, strings.Join(told, "\n"))
		}
		if step.brief && want == "stored" && over(m.state) {
			expiries++
			want, got = want+", then "+m.do(lifeStep{what: "expire"}), got+", then "+b.expire()
		}
		told = append(told, fmt.Sprintf("%s: %s; %s", step, want, m))
		stored, err := b.stored()
		if err != nil {
			t.Fatalf("TALLYMAN_SEED=%d: %v", seed, err)
		}
		model := fmt.Sprintf("%q attempt %d offset %d open %v", m.state, m.attempt, m.offset, m.open)
		if got != want || stored != model || m.receipts > 1 {
			t.Fatalf("TALLYMAN_SEED=%d: after %s:\n got %s, %s\nwant %s, %s; receipts %d\n\n%s", seed, step, got, stored, want, model, m.receipts, strings.Join(told, "\n"))
		}
	}
}

// stored describes what the store holds in the words of the model.
func (b *being) stored() (string, error) {
	e, err := b.records.Read(b.ctx, b.env.Token)
	if err != nil || e.Err != nil {
		return "", errors.Join(err, e.Err)
	}
	r := e.Record
	if r == nil {
		r = &kvstate.Record{}
	}
	if r.Token != 0 && r.Token < b.highest {
		return "", fmt.Errorf("token %d after %d", r.Token, b.highest)
	}
	b.highest = max(b.highest, r.Token)
	return fmt.Sprintf("%q attempt %d offset %d open %v", string(r.State), r.Attempt, r.Offset, announced(r)), nil
}

// announced reports whether a record holds an effect of unknown outcome, be it
// that nobody asks for it any more.
func announced(r *kvstate.Record) bool { return r.Open() || r.State.Terminal() && r.Intent != nil }

func (b *being) see(who string) (kvstate.Entry, error) {
	e, err := b.records.Read(b.ctx, b.env.Token)
	if err != nil {
		return e, err
	}
	s := &sight{base: e.Record, revision: e.Revision}
	if e.Record != nil {
		s.attempt = e.Record.Attempt
	}
	b.views[who] = s
	return e, nil
}

// expire waits until what was just made final is gone.
func (b *being) expire() string {
	for {
		e, err := b.records.Read(b.ctx, b.env.Token)
		if err != nil {
			return err.Error()
		}
		if e.Revision == 0 {
			return "gone"
		}
		if err := pipeline.Sleep(b.ctx, 50*time.Millisecond); err != nil {
			return err.Error()
		}
	}
}

// write is a write over what who has seen, by the real table and the real store.
func (b *being) write(step lifeStep, to kvstate.State, change func(*kvstate.Record)) (string, error) {
	s := b.views[step.who]
	base := s.base
	if base == nil {
		base = &kvstate.Record{ID: b.env.ID, Kind: b.env.Kind, Queue: b.env.Queue, Digest: b.env.Digest}
	}
	next, err := base.Advance(to, step.who, "", time.Now())
	if errors.Is(err, kvstate.ErrIllegalTransition) {
		return "illegal", nil
	}
	if err != nil {
		return "", err
	}
	next.Revision, next.Attempt = s.revision, s.attempt
	next.AddSeq(1)
	if to == kvstate.Parked {
		next.Command = &b.env.Command
	}
	if change != nil {
		change(next)
	}
	through := b.records
	if step.brief {
		through = b.brief
	}
	revision, err := through.WriteWait(b.ctx, b.env.Token, next)
	if errors.Is(err, kvstate.ErrStale) {
		return "stale", nil
	}
	if err != nil {
		return "", err
	}
	next.Revision = revision
	if next.Token == 0 && (to == kvstate.Claimed || to == kvstate.Prepared) {
		next.Token = revision
	}
	b.views[step.who] = &sight{base: next, revision: revision, attempt: next.Attempt, mine: true}
	return "stored", nil
}

func (b *being) do(step lifeStep) (string, error) {
	s := b.views[step.who]
	switch step.what {
	case "deliver":
		return b.deliver(step)
	case "look":
		_, err := b.see(step.who)
		return "seen", err
	case "crash":
		delete(b.views, step.who)
		return "gone", nil
	}
	if s == nil || step.worker() && !s.mine {
		return "nothing to do", nil
	}
	switch step.what {
	case "progress":
		return b.write(step, kvstate.Claimed, func(r *kvstate.Record) {
			r.Offset += uint64(step.n)
			r.Checkpoint, r.Intent = []byte(strconv.FormatUint(r.Offset, 10)), nil
		})
	case "prepare":
		return b.write(step, kvstate.Prepared, func(r *kvstate.Record) { r.Intent = []byte(step.who) })
	case "complete", "resolve":
		return b.write(step, kvstate.Completed, func(r *kvstate.Record) { r.Intent = nil })
	case "fail":
		if s.attempt >= lifeAttempts {
			return b.spent(step)
		}
		return b.write(step, kvstate.Waiting, func(r *kvstate.Record) { r.NextAt = time.Now().Add(time.Duration(step.n) * 24 * time.Hour) })
	case "park":
		return b.write(step, kvstate.Parked, func(r *kvstate.Record) { r.Reason = kvstate.ReasonRejected })
	case "requeue":
		return b.write(step, kvstate.Requeued, func(r *kvstate.Record) { r.Attempt, r.Intent = 0, nil })
	case "cancel":
		return b.write(step, kvstate.Cancelled, nil)
	case "discard":
		return b.write(step, kvstate.Discarded, nil)
	}
	return "", fmt.Errorf("unknown step %q", step.what)
}

// spent parks a command whose attempts are used up.
func (b *being) spent(step lifeStep) (string, error) {
	reason := kvstate.ReasonExhausted
	if s := b.views[step.who]; s.base != nil && announced(s.base) {
		reason = kvstate.ReasonUncertain
	}
	told, err := b.write(step, kvstate.Parked, func(r *kvstate.Record) { r.Reason = reason })
	return string(reason) + " " + told, err
}

// deliver does what a worker does with a delivery, by the real judgement.
func (b *being) deliver(step lifeStep) (string, error) {
	e, err := b.see(step.who)
	if err != nil {
		return "", err
	}
	s := b.views[step.who]
	takeOver := func(to kvstate.State) (string, error) {
		if s.attempt >= lifeAttempts {
			return b.spent(step)
		}
		return b.write(step, to, func(r *kvstate.Record) { r.Attempt, r.Token = r.Attempt+1, 0 })
	}
	switch found := dedupe.Judge(b.env, 1, e, time.Now()); found {
	case dedupe.Fresh:
		s.attempt, s.mine = 1, true
		return "runs without a claim", nil
	case dedupe.Settled:
		return "acked", nil
	case dedupe.Early:
		return "early", nil
	case dedupe.Unsure:
		told, err := takeOver(kvstate.Prepared)
		return "asks what became of it: " + told, err
	case dedupe.Resume:
		told, err := takeOver(kvstate.Claimed)
		return "runs: " + told, err
	default:
		return "", fmt.Errorf("judged to be case %d", found)
	}
}
