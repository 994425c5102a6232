package pipeline

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

// Defaults of GroupConfig.
const (
	DefaultBatches  = 1
	DefaultMessages = 500
	DefaultBytes    = 4 << 20
	DefaultAlone    = 16

	// retryBatches is how long a stream that refused batches as such gets single
	// messages before the next try.
	retryBatches = time.Minute
)

// GroupConfig of a Group. Zero fields mean the defaults.
type GroupConfig struct {
	// Batches bounds how many batches are under way. Default 1: a server works on
	// a stream's batches one after the other.
	Batches int
	// Messages and Bytes bound one batch. Defaults 500 and 4 MiB; a server takes
	// no more than 1,000 messages. A message that is larger goes by itself.
	Messages int
	Bytes    int
	// Alone is how many messages may be under way one by one before others
	// gather, and how many have to gather for a batch to pay. Default 16.
	Alone int
	// One says whether a refusal means that a single write of the batch is to
	// blame. The batch is then divided to find it; after any other refusal its
	// writes go one by one. Default: never.
	One func(*APIError) bool
	// Off is told that the stream does not take batches, and why; once, until it
	// does again. It is called on the pipe's goroutine and must not block.
	Off func(error)
}

// carrier is what a group needs of a [Pipe].
type carrier interface {
	Lend(m *nats.Msg, on OnReply) error
	Post(m *nats.Msg) error
}

// Group lets writes to one stream that are under way at the same time share
// atomic batches, so that a server which flushes to disk before it answers
// flushes once for all of them. It needs a stream with AllowAtomicPublish; any
// other gets single messages.
//
// There is no timer. A few writes go at once as they are. While so many are
// under way, or a batch is, further ones gather, and leave together when it has
// ended. No two of a batch have the same subject.
//
// Whatever becomes of a batch, each write gets the outcome that is its own.
//
// A Group is safe for concurrent use. It ends with its pipe.
type Group struct {
	to  carrier
	cfg GroupConfig
	id  string // begins the ids of its batches

	mu      sync.Mutex
	waiting []write
	alone   int // messages under way one by one
	batches int // under way
	most    int // messages in a batch; the server may allow fewer than we would send
	count   uint64
	off     time.Time // until then the stream gets single messages
	told    bool      // cfg.Off, since the last batch that was stored
	seen    map[string]struct{}
}

// write is a message and whoever waits for its outcome.
type write struct {
	m    *nats.Msg
	done func(PubAck, error)
}

// NewGroup returns a group that sends through p.
func NewGroup(p *Pipe, cfg GroupConfig) *Group { return newGroup(p, cfg) }

func newGroup(to carrier, cfg GroupConfig) *Group {
	set := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	set(&cfg.Batches, DefaultBatches)
	set(&cfg.Messages, DefaultMessages)
	set(&cfg.Bytes, DefaultBytes)
	set(&cfg.Alone, DefaultAlone)
	if cfg.One == nil {
		cfg.One = func(*APIError) bool { return false }
	}
	if cfg.Off == nil {
		cfg.Off = func(error) {}
	}
	return &Group{
		to: to, cfg: cfg, id: nuid.Next() + ".", most: min(cfg.Messages, len(ordinals)),
		seen: make(map[string]struct{}),
	}
}

// Add sends m, by itself or with others, and never waits. If it returns an
// error nothing was sent and done is not called; otherwise done is called once,
// on the pipe's goroutine, and must not block. The group owns m until then, and
// sets headers of it.
//
// An outcome that wraps ErrIndeterminate says that nobody knows whether m is stored.
func (g *Group) Add(m *nats.Msg, done func(PubAck, error)) error {
	if m.Header == nil {
		m.Header = nats.Header{}
	}
	g.mu.Lock()
	if !g.offLocked() && (g.batches > 0 || g.alone >= g.cfg.Alone || len(g.waiting) > 0) {
		g.waiting = append(g.waiting, write{m, done})
		g.mu.Unlock()
		return nil
	}
	g.alone++
	g.mu.Unlock()
	if err := g.send(write{m, done}); err != nil {
		g.leave(0, 1)
		return err
	}
	return nil
}

// send sends one write by itself; it is counted already.
func (g *Group) send(w write) error {
	return g.to.Lend(w.m, func(reply *nats.Msg, err error) {
		g.leave(0, 1)
		w.done(readAck(reply, err))
	})
}

// sendEach sends writes one by one.
func (g *Group) sendEach(writes []write) {
	g.mu.Lock()
	g.alone += len(writes)
	g.mu.Unlock()
	failed := 0
	for _, w := range writes {
		unnumber(w.m)
		if err := g.send(w); err != nil {
			failed++
			w.done(PubAck{}, err)
		}
	}
	if failed > 0 {
		g.leave(0, failed)
	}
}

// leave takes what has ended out of the count and sends what has gathered.
func (g *Group) leave(batches, alone int) {
	g.mu.Lock()
	g.batches -= batches
	g.alone -= alone
	for len(g.waiting) > 0 {
		var part []write
		switch {
		case g.offLocked():
			part, g.waiting = g.waiting, nil
		case g.batches < g.cfg.Batches && len(g.waiting) >= g.cfg.Alone:
			part = g.cutLocked()
			if len(part) >= g.cfg.Alone {
				g.batches++
				g.mu.Unlock()
				(&flight{g: g, parts: [][]write{part}}).next()
				g.mu.Lock()
				continue
			}
		case g.batches == 0 && g.alone < g.cfg.Alone:
			n := min(len(g.waiting), g.cfg.Alone-g.alone)
			part = append(part, g.waiting[:n]...)
			g.dropLocked(0, n)
		default:
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
		g.sendEach(part)
		g.mu.Lock()
	}
	g.mu.Unlock()
}

// cutLocked takes out of what waits as much as fits into a batch. The second
// write to a subject stays: what it expects may be what the first one makes.
func (g *Group) cutLocked() []write {
	clear(g.seen)
	part := make([]write, 0, min(len(g.waiting), g.most))
	kept, i, size := 0, 0, 0
	for ; i < len(g.waiting) && len(part) < g.most; i++ {
		w := g.waiting[i]
		if _, twice := g.seen[w.m.Subject]; twice {
			g.waiting[kept] = w
			kept++
			continue
		}
		size += len(w.m.Subject) + len(w.m.Data) + headerRoom
		if len(part) > 0 && size > g.cfg.Bytes {
			break
		}
		g.seen[w.m.Subject] = struct{}{}
		part = append(part, w)
	}
	g.dropLocked(kept, i)
	return part
}

// headerRoom is a guess at the headers of a message.
const headerRoom = 512

// dropLocked removes waiting[from:to].
func (g *Group) dropLocked(from, to int) {
	n := from + copy(g.waiting[from:], g.waiting[to:])
	clear(g.waiting[n:])
	g.waiting = g.waiting[:n]
}

// offLocked reports whether the stream gets single messages for now.
func (g *Group) offLocked() bool {
	if g.off.IsZero() {
		return false
	}
	if time.Now().Before(g.off) {
		return true
	}
	g.off = time.Time{}
	return false
}
