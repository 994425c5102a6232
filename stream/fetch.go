package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// maxOutstanding bounds what one fetcher has asked for and not received.
	maxOutstanding = 4096
	// maxBatch is how many deliveries are handed over at once.
	maxBatch = 256
	// pullBytes bounds what one pull brings. The server cuts a connection for
	// which more than 64 MiB wait.
	pullBytes = 16 << 20
	// pullGrace is how long after its expiry a pull may stay unanswered before
	// it counts as lost.
	pullGrace = 2 * time.Second
	// pullPause is the wait after a refused pull; it doubles up to maxPullPause.
	pullPause = 50 * time.Millisecond
	// pullBrief is how long a pull stays open for what should be there at once.
	pullBrief    = 250 * time.Millisecond
	maxPullPause = 2 * time.Second
)

// FetchConfig says what a fetcher pulls and where deliveries go.
type FetchConfig struct {
	Queue string
	// Pool is the name that a person gives to tallyman init; default that of the stream.
	Pool string
	// Expires is how long the server keeps a pull open. The lease of a
	// delivery is counted from the moment its pull was sent, so keep this
	// well below the lease. Default 5 s; at least 100 ms.
	Expires time.Duration
	// Want returns how many deliveries can be taken on, those on their way
	// included. What a brief pull has not brought within a moment is given back.
	// It is called on the fetcher's goroutine.
	Want func() (most int, brief bool)
	// Ration, if set, is asked instead of Want: how many more deliveries may be
	// asked for, when so many are on their way already, and so many commands wait
	// behind the last one that came, as far as is known. Able says whether a pull
	// can be sent just now; if not, it only hears what is on its way.
	Ration func(asked int, behind uint64, able bool) (more int, brief bool)
	// Wake tells that Want, or the ration, may have grown.
	Wake <-chan struct{}
	// Deliver takes deliveries on. It must not block.
	Deliver func([]*Delivery)
	// Notice is told why nothing can be fetched, once per change, and nil when
	// it works again. Optional.
	Notice func(error)
}

// Fetcher pulls deliveries of one queue. It asks for no more than Want allows,
// keeps its own account of every pull and replaces those that the server lost.
type Fetcher struct {
	stream *Stream
	cfg    FetchConfig
	api    string

	// Owned by the goroutine in Run.
	messages chan *nats.Msg
	pulls    []*pull
	whole    bool          // the next delivery is larger than the bound of a pull
	asked    int           // sum of pulls[].left
	behind   uint64        // how many commands waited behind the last delivery
	pause    time.Duration // before the next pull, after a refusal
	resumeAt time.Time
	failed   error // as last given to Notice

	alive atomic.Int64 // UnixNano of the last sign that pulling works
}

// pull is one request to the server. Each has a subscription of its own, so
// that every delivery can be booked on the pull that brought it.
type pull struct {
	sub    *nats.Subscription
	sentAt time.Time
	left   int
	got    bool // it has brought something
	closed bool // the server has ended it; what is left is on its way
}

// NewFetcher returns a fetcher; Run starts it.
func (s *Stream) NewFetcher(cfg FetchConfig) *Fetcher {
	if cfg.Expires <= 0 {
		cfg.Expires = 5 * time.Second
	}
	cfg.Expires = max(cfg.Expires, 100*time.Millisecond)
	if cfg.Notice == nil {
		cfg.Notice = func(error) {}
	}
	return &Fetcher{
		stream: s, cfg: cfg, api: "$JS.API.CONSUMER.MSG.NEXT." + s.name + "." + cfg.Queue,
		messages: make(chan *nats.Msg, 2*maxOutstanding),
	}
}

// Alive returns when the server last answered a pull in good order, or since when
// there is a pull to be answered, if there was none before. It is zero until the
// first answer.
func (f *Fetcher) Alive() time.Time {
	if ns := f.alive.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Run fetches until ctx ends and returns nil then. It survives lost
// connections, deleted queues and restarted servers; Notice hears of them.
func (f *Fetcher) Run(ctx context.Context) error {
	changed := f.stream.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer f.stream.nc.RemoveStatusListener(changed)
	defer f.forget()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := f.pull(); err != nil {
			f.refuse(err)
		}
		timer.Reset(f.nextLook())
		select {
		case <-ctx.Done():
			f.handOver()
			return nil
		case m := <-f.messages:
			f.receive(m)
		case <-f.cfg.Wake:
		case <-timer.C:
			f.watch(time.Now())
		case status, ok := <-changed:
			if !ok || status == nats.CLOSED {
				return fmt.Errorf("stream: fetch from queue %q: %w", f.cfg.Queue, nats.ErrConnectionClosed)
			}
			if status == nats.CONNECTED {
				f.pause, f.resumeAt = 0, time.Time{}
				continue
			}
			// What was asked for over the old connection may or may not come.
			f.forget()
		}
	}
}

// handOver ends every pull and passes on what has arrived or is on its way, so
// that it can be given back now and need not wait for the end of its lease.
func (f *Fetcher) handOver() {
	for _, p := range f.pulls {
		_ = p.sub.Drain() // fails only when the connection is gone
	}
	// Once the server has answered, nothing more is on its way. Without an
	// answer, what has arrived is all that can be handed over.
	_ = f.stream.nc.FlushTimeout(time.Second)
	for {
		select {
		case m := <-f.messages:
			f.receive(m)
		default:
			return
		}
	}
}

// forget gives up every open pull.
func (f *Fetcher) forget() {
	for len(f.pulls) > 0 {
		f.end(f.pulls[0])
	}
}

// end closes the books of a pull. Without its subscription the server finds no
// interest and sends nothing for it any more.
func (f *Fetcher) end(p *pull) {
	_ = p.sub.Unsubscribe() // fails only when the connection is gone, and the subscription with it
	f.asked -= p.left
	f.pulls = slices.DeleteFunc(f.pulls, func(q *pull) bool { return q == p })
}

// pull asks for what is wanted and not yet asked for, once that is worth a request.
func (f *Fetcher) pull() error {
	able := !time.Now().Before(f.resumeAt) && f.stream.nc.IsConnected()
	n, expires := f.more(able)
	if n <= 0 || !able {
		return nil
	}
	most := max(pullBytes, 2*f.stream.nc.MaxPayload())
	if f.whole {
		n, most, f.whole = 1, 0, false // 0: no bound
	}
	body := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"max_bytes":%d}`, n, expires, most)
	inbox := f.stream.nc.NewInbox()
	sub, err := f.stream.nc.ChanSubscribe(inbox, f.messages)
	if err != nil {
		return fmt.Errorf("stream: fetch from queue %q: %w", f.cfg.Queue, err)
	}
	p := &pull{sub: sub, sentAt: time.Now(), left: n}
	if len(f.pulls) == 0 && f.failed == nil && f.alive.Load() != 0 {
		f.alive.Store(p.sentAt.UnixNano())
	}
	f.pulls = append(f.pulls, p)
	f.asked += n
	if err := f.stream.nc.PublishRequest(f.api, inbox, body); err != nil {
		f.end(p)
		return fmt.Errorf("stream: fetch from queue %q: %w", f.cfg.Queue, err)
	}
	return nil
}

// more is how many deliveries to ask for now, and for how long.
func (f *Fetcher) more(able bool) (n int, expires time.Duration) {
	if f.cfg.Ration == nil {
		want, brief := f.cfg.Want()
		want = min(want, maxOutstanding)
		if n = want - f.asked; f.asked > 0 && 2*n < want {
			n = 0
		}
		return n, f.expires(brief)
	}
	n, brief := f.cfg.Ration(f.asked, f.behind, able)
	return min(n, maxOutstanding-f.asked), f.expires(brief)
}

func (f *Fetcher) expires(brief bool) time.Duration {
	if brief {
		return min(pullBrief, f.cfg.Expires)
	}
	return f.cfg.Expires
}

// receive takes a message and whatever else is there already.
func (f *Fetcher) receive(m *nats.Msg) {
	var batch []*Delivery
	for m != nil {
		if d := f.accept(m); d != nil {
			batch = append(batch, d)
		}
		m = nil
		if len(batch) < maxBatch {
			select {
			case m = <-f.messages:
			default:
			}
		}
	}
	if len(batch) > 0 {
		f.works()
		f.cfg.Deliver(batch)
	}
}

func (f *Fetcher) accept(m *nats.Msg) *Delivery {
	i := slices.IndexFunc(f.pulls, func(p *pull) bool { return p.sub == m.Sub })
	if i < 0 {
		return nil // of a pull that was given up; the lease of a delivery runs out
	}
	p := f.pulls[i]
	if m.Reply == "" {
		f.status(p, m.Header)
		return nil
	}
	f.asked--
	p.got = true
	if p.left--; p.left == 0 {
		f.end(p)
	}
	d := f.stream.delivery(m, p.sentAt)
	if d != nil {
		f.behind = d.Behind
	}
	return d
}

// status handles an answer that is no delivery.
func (f *Fetcher) status(p *pull, h nats.Header) {
	code, text := h.Get("Status"), h.Get("Description")
	if code == "100" {
		return // a sign of life
	}
	f.conclude(p, h.Get("Nats-Pending-Messages"))
	f.behind = 0 // or the pull would not have ended
	switch {
	case code == "404", code == "408" && text != "Requests Pending", code == "409" && text == "Batch Completed":
		f.works()
	case code == "409" && text == "Message Size Exceeds MaxBytes":
		f.whole = !p.got && !p.closed
		f.works()
	case code == "503":
		f.refuse(f.explain())
	case code == "409" && text == "Consumer Deleted":
		f.refuse(f.gone(ErrNoQueue, "its consumer was deleted"))
	default: // leadership change, server shutdown, too many pulls
		f.refuse(fmt.Errorf("stream: fetch from queue %q: server says %s %s", f.cfg.Queue, code, text))
	}
}

// conclude takes the server's word that it hands out nothing more for a pull,
// of which so many were left then. A replicated consumer says so at once, but
// sends what it has handed out only when a majority knows of it. So deliveries
// may come after that word, and are lost until their leases end if nobody
// listens.
func (f *Fetcher) conclude(p *pull, left string) {
	n, err := strconv.Atoi(left)
	if err != nil || n < 0 || n >= p.left {
		f.end(p)
		return
	}
	f.asked -= n
	p.left -= n
	p.closed = true
}

// explain finds out why nobody answers pulls. Without an answer either, the
// server or its JetStream is away.
func (f *Fetcher) explain() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch _, err := f.stream.Queue(ctx, f.cfg.Queue); {
	case errors.Is(err, ErrNoStream):
		return f.gone(ErrNoStream, "its stream does not exist, and whatever was in it is lost")
	case errors.Is(err, ErrNoQueue):
		return f.gone(ErrNoQueue, "its consumer does not exist")
	}
	return fmt.Errorf("stream: fetch from queue %q: %w", f.cfg.Queue, ErrUnavailable)
}

// gone is the error for a queue without its consumer, which only an operator mends.
func (f *Fetcher) gone(what error, why string) error {
	return fmt.Errorf("stream: fetch from queue %q: %w: %s; create it with: tallyman init --pool %s --queue %s",
		f.cfg.Queue, what, why, cmp.Or(f.cfg.Pool, strings.TrimSuffix(f.stream.name, Name(""))), f.cfg.Queue)
}

// watch gives up pulls whose end the server never told.
func (f *Fetcher) watch(now time.Time) {
	for _, p := range slices.Clone(f.pulls) {
		if now.Sub(p.sentAt) > f.cfg.Expires+pullGrace {
			f.end(p)
			if !p.closed { // else what was left went under with a leader, and comes again
				f.refuse(fmt.Errorf("stream: fetch from queue %q: a pull was never answered", f.cfg.Queue))
			}
		}
	}
}

// nextLook is when the loop has to act even if nothing arrives.
func (f *Fetcher) nextLook() time.Duration {
	d := f.cfg.Expires
	if len(f.pulls) > 0 {
		d = time.Until(f.pulls[0].sentAt.Add(f.cfg.Expires + pullGrace + time.Millisecond))
	}
	if wait := time.Until(f.resumeAt); wait > 0 && wait < d {
		d = wait
	}
	return max(d, time.Millisecond)
}

func (f *Fetcher) works() {
	f.alive.Store(time.Now().UnixNano())
	f.pause = 0
	if f.failed != nil {
		f.failed = nil
		f.cfg.Notice(nil)
	}
}

// refuse notes that pulling does not work just now, and pauses.
func (f *Fetcher) refuse(err error) {
	f.pause = min(max(2*f.pause, pullPause), maxPullPause)
	f.resumeAt = time.Now().Add(f.pause)
	if f.failed == nil || f.failed.Error() != err.Error() {
		f.failed = err
		f.cfg.Notice(err)
	}
}
