package memory

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/stream"
)

// pullGrace is how long after its expiry a pull may stay unanswered.
const pullGrace = 2 * time.Second

// Fetcher pulls deliveries as a [stream.Fetcher] does.
type Fetcher struct {
	h     *Handle
	cfg   stream.FetchConfig
	bell  chan struct{} // rung when something has arrived
	alive atomic.Int64

	pulls []*pull // owned by the goroutine in Run

	mu      sync.Mutex
	arrived []arrival
}

type arrival struct {
	pull *pull
	m    *nats.Msg // nil: the pull has expired
}

// NewFetcher returns a fetcher; Run starts it.
func (c *Commands) NewFetcher(cfg stream.FetchConfig) *Fetcher {
	if cfg.Expires <= 0 {
		cfg.Expires = 5 * time.Second
	}
	return &Fetcher{h: c.h, cfg: cfg, bell: make(chan struct{}, 1)}
}

// Alive returns when the server last answered a pull.
func (f *Fetcher) Alive() time.Time {
	if ns := f.alive.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Run fetches until ctx ends and returns nil then.
func (f *Fetcher) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed, cut := f.h.cutOff()
		if cut {
			f.pulls = nil // what was asked for over the old connection never comes
			timer.Reset(pullGrace / 8)
		} else {
			f.ask()
			timer.Reset(f.cfg.Expires)
		}
		select {
		case <-ctx.Done():
			f.handOver()
			return nil
		case <-f.bell:
			f.receive()
		case <-f.cfg.Wake:
		case <-changed:
			f.pulls = nil
		case <-timer.C:
			lost := func(p *pull) bool { return time.Since(p.sentAt) > f.cfg.Expires+pullGrace }
			f.pulls = slices.DeleteFunc(f.pulls, lost)
		}
	}
}

// ask sends a pull for what is wanted and not asked for yet.
func (f *Fetcher) ask() {
	n, _ := f.cfg.Want()
	for _, p := range f.pulls {
		n -= p.asked
	}
	if n <= 0 {
		return
	}
	p := &pull{h: f.h, queue: f.cfg.Queue, deliver: f.arrive, sentAt: time.Now(), asked: n, left: n}
	f.pulls = append(f.pulls, p)
	fate := f.h.faults.fate(OpPull)
	err := f.h.send(fate.Delay, func() {
		if !fate.Lost {
			f.h.s.pull(p, f.cfg.Expires)
		}
	})
	if err != nil {
		f.pulls = f.pulls[:len(f.pulls)-1]
	}
}

// arrive runs on the handle's goroutine.
func (f *Fetcher) arrive(p *pull, m *nats.Msg) {
	f.mu.Lock()
	f.arrived = append(f.arrived, arrival{p, m})
	f.mu.Unlock()
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

// receive passes on what has arrived.
func (f *Fetcher) receive() {
	f.mu.Lock()
	arrived := f.arrived
	f.arrived = nil
	f.mu.Unlock()
	var batch []*stream.Delivery
	for _, a := range arrived {
		i := slices.Index(f.pulls, a.pull)
		if i < 0 {
			continue // of a pull that was given up
		}
		f.alive.Store(time.Now().UnixNano())
		if a.pull.asked--; a.m == nil || a.pull.asked == 0 {
			f.pulls = slices.Delete(f.pulls, i, i+1)
		}
		if a.m == nil {
			continue
		}
		if d := stream.NewDelivery(f.h.s.cfg.Pool, a.m, a.pull.sentAt, f.h); d != nil {
			f.h.lease(d.Seq, d.LeaseFrom, true)
			batch = append(batch, d)
		}
	}
	if len(batch) > 0 {
		f.cfg.Deliver(batch)
	}
}

// handOver ends every pull and passes on what is on its way.
func (f *Fetcher) handOver() {
	for _, p := range f.pulls {
		_ = f.h.send(0, func() { f.h.s.endPull(p) }) // fails only when the connection is gone, and the pull with it
	}
	_ = f.h.Flush(time.Second) // without an answer, what has arrived is all there is
	f.receive()
}
