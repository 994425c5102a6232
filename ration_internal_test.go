package tallyman

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// pulls plays fetchers against rations: each asks when it is woken or something
// has come for it, as stream.Fetcher does.
type pulls struct {
	*rations
	limit  int // of what the worker holds
	held   int
	behind []int // in each shard, not yet delivered
	way    []int // on their way
	known  []int // behind, as of the last delivery
	due    []int // fetchers that were woken
	sent   int   // pulls
	most   int   // held and on their way at once
}

func newPulls(n, limit int) *pulls {
	p := &pulls{limit: limit, behind: make([]int, n), way: make([]int, n), known: make([]int, n)}
	p.rations = newRations(n, func() int { return p.limit - p.held }, func(i int) { p.due = append(p.due, i) })
	return p
}

func (p *pulls) ask(i int) {
	n, _ := p.more(i, p.way[i], uint64(p.known[i]), true)
	if n > 0 {
		p.sent++
		p.way[i] += n
	}
	on := p.held
	for _, a := range p.way {
		on += a
	}
	p.most = max(p.most, on)
}

// deliver brings what pulls have asked for, and lets fetchers ask for more.
func (p *pulls) deliver() (n int) {
	for i := range p.way {
		if some := min(p.way[i], p.behind[i]); some > 0 {
			p.way[i] -= some
			p.behind[i] -= some
			p.known[i] = p.behind[i]
			p.held += some
			n += some
			p.ask(i)
		}
	}
	for len(p.due) > 0 {
		i := p.due[0]
		p.due = p.due[1:]
		p.ask(i)
	}
	return n
}

// idle reports whether nothing is on its way, nor anybody about to ask.
func (p *pulls) idle() bool {
	return len(p.due) == 0 && !slices.ContainsFunc(p.way, func(n int) bool { return n > 0 })
}

// finish ends n of what is held.
func (p *pulls) finish(n int) {
	for range n {
		p.held--
		p.freed()
	}
}

// wrong says where the sums differ from what they are sums of.
func (p *pulls) wrong() string {
	asked, out, coming, waits := 0, 0, 0, 0
	for i, r := range p.of {
		asked += r.asked
		if r.asked > 0 {
			out++
		}
		if r.backlog {
			coming += r.asked
		}
		if r.waits != slices.Contains(p.waiting, i) {
			return fmt.Sprintf("fetcher %d waits: %v, want otherwise: %v", i, r.waits, p.waiting)
		}
		if r.waits {
			waits++
		}
	}
	if asked == p.asked && out == p.out && coming == p.coming && waits == len(p.waiting) {
		return ""
	}
	return fmt.Sprintf("got %d asked by %d, %d coming, %d waiting; want %d, %d, %d, %d", p.asked, p.out, p.coming, len(p.waiting), asked, out, coming, waits)
}

func TestRations_CostAsManyPullsAsOneFetcher(t *testing.T) {
	t.Parallel()
	const commands, limit = 100_000, 1000
	sent := map[int]int{}
	for _, n := range []int{2, 4, 16} {
		p := newPulls(n, limit)
		for i := range p.behind {
			p.behind[i] = commands / n
		}
		for i := range p.behind {
			p.ask(i)
		}
		for done := 0; done < commands; {
			p.deliver()
			if p.held == 0 && p.idle() {
				t.Fatalf("%d shards: nothing is held and %v waits; asked for: %v", n, p.behind, p.way)
			}
			some := min(p.held, 100)
			p.finish(some)
			done += some
		}
		sent[n] = p.sent
		if p.most > limit+n {
			t.Errorf("%d shards: got up to %d held and on their way, want no more than %d and one for each", n, p.most, limit)
		}
		if want := commands/100 + 4*n; p.sent > want { // one fetcher would ask whenever 100 are done
			t.Errorf("%d shards: got %d pulls for %d commands, want no more than %d", n, p.sent, commands, want)
		}
	}
	t.Log("pulls by shards:", sent)
}

func TestRations_StarveNobody(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 3, 100} {
		t.Run(fmt.Sprint(limit, " slots"), func(t *testing.T) {
			t.Parallel()
			const n, each = 8, 400
			p := newPulls(n, limit)
			for i := range p.behind {
				p.behind[i] = each
			}
			for i := range p.behind {
				p.ask(i)
			}
			for done := 0; done < n*each/2; {
				p.deliver()
				if p.held == 0 && p.idle() {
					t.Fatalf("nothing is held and %v waits; asked for: %v", p.behind, p.way)
				}
				some := min(p.held, max(limit/4, 1))
				p.finish(some)
				done += some
			}
			for i, left := range p.behind {
				if left < each/2-limit-n || left > each/2+limit+n {
					t.Errorf("shard %d has %d left, want about half of %d", i, left, each)
				}
			}
		})
	}
}

// A shard alone gets all that is free but what the others need to listen.
func TestRations_OneBusyShard(t *testing.T) {
	t.Parallel()
	const n, limit = 16, 1000
	p := newPulls(n, limit)
	for i := range n {
		p.ask(i)
	}
	p.behind[5] = 10 * limit
	for p.deliver() > 0 {
	}
	if p.held < limit*3/4 {
		t.Errorf("got %d held, want at least three quarters of %d", p.held, limit)
	}
	for i, asked := range p.way {
		if i != 5 && asked == 0 {
			t.Errorf("shard %d does not listen", i)
		}
	}
	for i := range n {
		p.behind[i]++ // something comes to those that listen
	}
	before := p.held
	p.deliver()
	if got := p.held - before; got < n-1 {
		t.Errorf("got %d delivered, want one for each that listens", got)
	}
}

// One that cannot pull just now, or does not answer, keeps nobody from asking.
func TestRations_OutOfOrder(t *testing.T) {
	t.Parallel()
	p := newPulls(3, 10)
	p.held = 10
	for i := range 3 {
		p.known[i] = 100
		if n, _ := p.more(i, 0, 100, true); n != 0 {
			t.Fatalf("fetcher %d got %d with nothing free", i, n)
		}
	}
	if n, _ := p.more(0, 0, 100, false); n != 0 {
		t.Errorf("got %d for one that cannot ask", n)
	}
	p.held = 0
	p.freed()
	if len(p.due) != 1 || p.due[0] != 1 {
		t.Fatalf("woke %v, want the second, since the first cannot ask", p.due)
	}
	p.nudged = p.nudged.Add(-2 * nudgeTime) // it does not answer
	p.freed()
	if len(p.due) != 2 || p.due[1] != 2 {
		t.Fatalf("woke %v, want the third after the second", p.due)
	}
	if n, brief := p.more(2, 0, 100, true); n != 10 || !brief {
		t.Errorf("got %d, brief: %v, want all that is free, for a moment", n, brief)
	}
	if n, _ := p.more(1, 0, 100, true); n != 0 {
		t.Errorf("got %d with everything on its way to another", n)
	}
}

func TestRations_BooksAgree(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	const n, limit = 5, 50
	p := newPulls(n, limit)
	for step := range 20_000 {
		i := rng.IntN(n)
		switch rng.IntN(5) {
		case 0:
			p.behind[i] += rng.IntN(40)
		case 1:
			p.deliver()
		case 2:
			p.finish(rng.IntN(p.held + 1))
		case 3: // its pull expires
			p.way[i], p.known[i] = 0, 0
			p.ask(i)
		case 4:
			p.more(i, p.way[i], uint64(p.known[i]), false)
		}
		if text := p.wrong(); text != "" || p.most > limit+n {
			t.Fatalf("seed %d, step %d: %s; at most %d held and on their way, want %d", seed, step, text, p.most, limit+n)
		}
	}
}

// The pace of a worker falls while it has asked for all that it could take on
// before: what comes is more than it wants by then.
func TestRations_TheLimitFalls(t *testing.T) {
	t.Parallel()
	const n, before, after = 16, 100 + fastAhead, 100 + maxAhead
	// fallen is what there is when about 3,000 are on their way and the limit falls.
	fallen := func(t *testing.T, each int) *pulls {
		t.Helper()
		p := newPulls(n, before)
		for i := range p.behind {
			p.behind[i] = each
			p.ask(i)
		}
		p.deliver()
		on := 0
		for _, a := range p.way {
			on += a
		}
		if on < 2500 || p.held+on < before*9/10 {
			t.Fatalf("got %d held and %d on their way, want about %d", p.held, on, before)
		}
		p.limit, p.sent = after, 0
		return p
	}
	// ok looks at the books, and at whether anybody has asked for too much.
	ok := func(t *testing.T, p *pulls, sent int) {
		t.Helper()
		on := p.held
		for _, a := range p.way {
			on += a
		}
		if text := p.wrong(); text != "" {
			t.Fatal(text)
		}
		if p.sent > sent && on > after+n {
			t.Fatalf("somebody asked for more with %d held and on their way, want no more than %d and one for each", on, after)
		}
	}
	t.Run("and all that is on its way comes", func(t *testing.T) {
		t.Parallel()
		const each = 5000
		p := fallen(t, each)
		p.deliver()
		ok(t, p, 0)
		for done := 0; done < n*each; {
			sent := p.sent
			p.deliver()
			ok(t, p, sent)
			if p.held == 0 && p.idle() {
				t.Fatalf("nothing is held and %v waits; asked for: %v", p.behind, p.way)
			}
			if done > n*each/2 && slices.Max(p.behind)-slices.Min(p.behind) > before {
				t.Fatalf("after %d the shards have %v left, want about as much in each", done, p.behind)
			}
			some := min(p.held, 100)
			p.finish(some)
			done += some
			ok(t, p, p.sent)
		}
		p.listen(t)
	})
	t.Run("and nothing comes, since others took it", func(t *testing.T) {
		t.Parallel()
		p := fallen(t, 5000)
		for i := range p.behind {
			p.behind[i] = 0
		}
		p.finish(p.held / 2)
		ok(t, p, p.sent)
		for i := range p.way { // the pulls expire, one after the other
			p.way[i], p.known[i] = 0, 0
			sent := p.sent
			p.ask(i)
			ok(t, p, sent)
			p.deliver()
		}
		p.finish(p.held)
		p.deliver()
		p.listen(t)
	})
	t.Run("and some of it comes, from one shard", func(t *testing.T) {
		t.Parallel()
		p := fallen(t, 5000)
		clear(p.behind)
		p.behind[7] = 5000
		p.deliver()
		p.finish(p.held)
		for i := range p.way {
			if i != 7 {
				p.way[i], p.known[i] = 0, 0
				p.ask(i)
			}
			p.deliver()
			ok(t, p, p.sent)
		}
		for step := 0; p.behind[7] > 0; step++ {
			sent := p.sent
			p.deliver()
			ok(t, p, sent)
			if step > 5000 { // some for each would do
				t.Fatalf("%d wait still, with %d held; asked for: %v", p.behind[7], p.held, p.way)
			}
			p.finish(min(p.held, 100))
		}
		p.finish(p.held)
		p.deliver()
		p.listen(t)
	})
}

// listen brings something to every shard, once all is done.
func (p *pulls) listen(t *testing.T) {
	t.Helper()
	for i := range p.way { // a brief pull ends soon
		if p.behind[i] == 0 && p.way[i] > 1 {
			p.way[i], p.known[i] = 0, 0
			p.ask(i)
		}
	}
	for len(p.due) > 0 {
		p.deliver()
	}
	for i, asked := range p.way {
		if asked == 0 {
			t.Errorf("shard %d is deaf; asked for: %v, waiting: %v", i, p.way, p.waiting)
		}
	}
	for i := range p.behind {
		p.behind[i]++
	}
	before := p.held
	p.deliver()
	if got := p.held - before; got != len(p.behind) {
		t.Errorf("%d of %d shards brought what had come to them", got, len(p.behind))
	}
	if text := p.wrong(); text != "" {
		t.Error(text)
	}
}
