package tallyman

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// defaultOrdeals is how many seeds one run of the tests tries, unless
// TALLYMAN_ORDEALS says otherwise.
const defaultOrdeals = 1000

// TestOrdeal lets a few workers meet a few commands, and random faults meet
// both, in simulated time. Then everything may end, and the books must balance.
// A failure prints its seed; TALLYMAN_SEED tells the same again, up to
// what the scheduler of goroutines decides.
func TestOrdeal(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("TALLYMAN_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("TALLYMAN_SEED: %v", err)
		}
		synctest.Test(t, func(t *testing.T) { tell(t, seed, new(sightings)) })
		return
	}
	ordeals := defaultOrdeals
	if text := os.Getenv("TALLYMAN_ORDEALS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("TALLYMAN_ORDEALS: %q is no number of ordeals", text)
		}
		ordeals = n
	}
	first := rand.Uint64N(1 << 40)
	t.Logf("seeds from %d on", first)
	var seen sightings
	t.Cleanup(func() {
		for typ := EventCompleted; typ < eventTypes; typ++ {
			if typ != EventFellBack && seen[typ].Load() == 0 && !t.Failed() && ordeals >= defaultOrdeals {
				t.Errorf("no worker of %d ordeals has reported %q: they have become too tame", ordeals, typ)
			}
		}
	})
	const lanes = 4
	for lane := range lanes {
		t.Run(fmt.Sprintf("every %d. from %d", lanes, lane), func(t *testing.T) {
			t.Parallel()
			for i := lane; i < ordeals; i += lanes {
				seed := first + uint64(i)
				if !t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { tell(t, seed, &seen) })
				}) {
					return
				}
			}
		})
	}
}

// ordeal is what happens under one seed.
type ordeal struct {
	server   *memory.Server
	settings Settings
	began    time.Time
	mux      *Mux
	seen     *sightings
	work     sync.WaitGroup // every goroutine that the ordeal starts

	world world

	mu     sync.Mutex
	rng    *rand.Rand
	faults faultMix
	calm   bool // no more faults
	acts   []*act
	notes  []note
	people int // members so far
	acting int // acts of operators that have not ended
	alive  map[*member]bool
}

// faultMix is how often, in 10,000 operations, a fault strikes.
type faultMix struct{ kill, freeze, cut, lose, delay, lag, stop int }

type note struct {
	at   time.Time
	text string
}

const eventTypes = EventFellBack + 1

// sightings counts the events of all ordeals, by type.
type sightings [eventTypes]atomic.Int64

// tell runs the ordeal of one seed, and checks it.
func tell(t *testing.T, seed uint64, seen *sightings) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	lease := []time.Duration{2 * time.Second, 6 * time.Second, 30 * time.Second}[rng.IntN(3)]
	o := &ordeal{
		seen: seen, rng: rng, began: time.Now(), alive: map[*member]bool{},
		settings: Settings{Lease: lease, MaxAttempts: 2 + rng.IntN(3), BackoffMin: time.Second, BackoffMax: 5 * time.Second}.WithDefaults(),
		server:   memory.NewServer(memory.Config{Lease: lease, Retention: DefaultRetention}),
	}
	some := func(n int) int { // often none at all
		if rng.IntN(2) == 0 {
			return 0
		}
		return rng.IntN(n)
	}
	o.faults = faultMix{kill: some(300), freeze: some(300), cut: some(300), lose: some(1000), delay: some(1500), lag: some(5000), stop: some(100)}
	o.mux = &Mux{}
	for _, route := range []Route{
		{Kind: "plain"}, {Kind: "eager", Eager: true}, {Kind: "brief", Timeout: 2 * time.Second, MaxAttempts: 2},
		{Kind: "sparse", SaveCount: 3}, {Kind: "blind"}, {Kind: "risky"},
	} {
		route.Handler = HandlerFunc(func(context.Context, *Claim) (Result, error) { panic("a member puts its own in place") })
		if err := o.mux.Route(route); err != nil {
			t.Fatal(err)
		}
	}
	o.note("seed %d, %+v, faults in 10,000 operations: %+v", seed, o.settings, o.faults)

	accepted := o.submitAll(t)
	for range 2 + o.draw(2) {
		o.join()
	}
	for i := range o.draw(3) {
		o.hire(fmt.Sprint("desk", i+1))
	}
	time.Sleep(lease * 6)
	o.mu.Lock()
	o.calm = true
	o.mu.Unlock()
	o.note("calm")
	for range 1000 {
		if o.done(accepted) {
			break
		}
		time.Sleep(lease / 2)
	}
	ended := o.done(accepted)
	o.mu.Lock()
	members := o.alive
	o.alive = map[*member]bool{}
	o.mu.Unlock()
	for m := range members {
		m.cancel()
	}
	o.work.Wait()
	time.Sleep(time.Hour) // whatever still hangs returns meanwhile

	var faults []string
	if !ended {
		faults = append(faults, fmt.Sprintf("sequences %v never settled, or not everything was accepted", o.server.Held()))
	}
	if faults = append(faults, o.check()...); len(faults) > 0 {
		t.Errorf("TALLYMAN_SEED=%d: %s\n\n%s", seed, strings.Join(faults, "\n  and "), o.text())
	}
}

// draw returns a random number below n.
func (o *ordeal) draw(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rng.IntN(n)
}

// while draws a time up to most; short ones are as likely as long ones.
func (o *ordeal) while(most time.Duration) time.Duration {
	return most / time.Duration(int(1)<<o.draw(6)) * time.Duration(1+o.draw(100)) / 100
}

func (o *ordeal) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.noteLocked(format, args...)
}

func (o *ordeal) noteLocked(format string, args ...any) {
	o.notes = append(o.notes, note{time.Now(), fmt.Sprintf(format, args...)})
}

// text is the whole ordeal: what the server saw, and the notes, in order.
func (o *ordeal) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := slices.Clone(o.notes)
	for _, e := range o.server.Log() {
		lines = append(lines, note{e.At, "  " + e.String()})
	}
	slices.SortStableFunc(lines, func(a, b note) int { return cmp.Compare(a.at.Sub(o.began), b.at.Sub(o.began)) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%12v %s\n", l.at.Sub(o.began), l.text)
	}
	return b.String()
}

// submitAll lets a producer submit commands, one of them twice and one under a
// taken id, and somebody else send what is no command. It returns what tells how
// many of them the server has confirmed.
func (o *ordeal) submitAll(t *testing.T) *confirmed {
	t.Helper()
	h := o.server.Connect("producer", o.fates(nil))
	producer := onDouble(h, o.settings)
	c := &confirmed{}
	submit := func(cmd Command) {
		c.want++
		wait := o.while(o.settings.Lease * 4)
		o.work.Go(func() {
			time.Sleep(wait)
			for {
				sub, err := producer.Submit(context.Background(), cmd)
				if err == nil || isOneOf(err, ErrConflict) {
					o.note("%s is submitted: %+v, %v", cmd.ID, sub, err)
					c.add(cmd, sub, err)
					return
				}
			}
		})
	}
	kinds := []string{"plain", "plain", "eager", "brief", "sparse", "blind", "risky", "risky"}
	n := 2 + o.draw(4)
	for i := range n {
		submit(Command{ID: fmt.Sprint("c", i), Kind: kinds[o.draw(len(kinds))], Payload: []byte("p"), Queue: command.DefaultQueue})
	}
	submit(Command{ID: "c0", Kind: "plain", Payload: []byte("p"), Queue: command.DefaultQueue})
	if o.draw(2) == 0 {
		submit(Command{ID: "c1", Kind: "plain", Payload: []byte("another payload"), Queue: command.DefaultQueue})
	}
	for range o.draw(3) { // what any client may send
		token := []command.Token{"c1", "c2", "=zz"}[o.draw(3)]
		wait := o.while(o.settings.Lease * 8)
		o.work.Go(func() {
			time.Sleep(wait)
			err := o.server.Connect("stranger", nil).Commands().Send(command.DefaultQueue, "plain", token, nil, []byte("p"), func(_ stream.Accepted, err error) {
				o.note("a stranger sent %s: %v", token, err)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	o.work.Go(func() {
		time.Sleep(o.settings.Lease * 9) // the strangers are through
		c.mu.Lock()
		defer c.mu.Unlock()
		c.strangers = true
	})
	return c
}

// hire lets an operator act on some commands. An act whose outcome is not known
// is repeated, as its error says.
func (o *ordeal) hire(name string) {
	h := o.server.Connect(name, o.fates(nil))
	d := desk.New(h.Commands(), h.Records())
	acts := map[string]func(context.Context, desk.Act, string) (desk.Outcome, error){
		"requeue": d.Requeue, "cancel": d.Cancel, "discard": d.Discard,
		"resolve": func(ctx context.Context, act desk.Act, id string) (desk.Outcome, error) {
			return d.Resolve(ctx, act, id, desk.Result{Body: []byte("stated")})
		},
	}
	for range 1 + o.draw(6) {
		what := []string{"requeue", "requeue", "requeue", "cancel", "cancel", "resolve", "discard"}[o.draw(7)]
		id, after := fmt.Sprint("c", o.draw(4)), o.while(o.settings.Lease*8)
		o.mu.Lock()
		o.acting++
		o.mu.Unlock()
		o.work.Go(func() {
			time.Sleep(after)
			for {
				out, err := acts[what](context.Background(), desk.Act{By: name}, id)
				o.note("%s: %s %s: %+v, %v", name, what, id, out, err)
				if err == nil || isOneOf(err, desk.ErrRefused, desk.ErrNotFound) {
					break
				}
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.acting--
		})
	}
}

// confirmed is what producers were told.
type confirmed struct {
	want int

	mu        sync.Mutex
	got       int
	ids       []string
	strangers bool // all of them have sent what they had
}

func (c *confirmed) add(cmd Command, _ Submission, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got++
	if err == nil {
		c.ids = append(c.ids, cmd.ID)
	}
}

// done reports whether everything was accepted and has left the stream, each
// with an outcome on record.
func (o *ordeal) done(c *confirmed) bool {
	o.mu.Lock()
	acting := o.acting
	o.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if acting > 0 || c.got < c.want || !c.strangers || len(o.server.Held()) > 0 {
		return false
	}
	for _, id := range c.ids {
		token, err := dedupe.Token(id)
		if e := o.server.Entry(token); err != nil || e.Record == nil || !e.Record.State.Terminal() {
			return false
		}
	}
	return true
}

// lastOf returns the newest entry of every key that the log holds.
func lastOf(log []memory.Event) map[command.Token]kvstate.Entry {
	last := map[command.Token]kvstate.Entry{}
	for _, e := range log {
		if e.What == memory.Written {
			last[e.Entry.Key] = e.Entry
		}
	}
	return last
}
