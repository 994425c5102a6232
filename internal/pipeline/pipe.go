package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Errors that callbacks get. Test with errors.Is.
var (
	// ErrIndeterminate is wrapped by ErrTimeout and ErrDisconnected.
	ErrIndeterminate = errors.New("outcome unknown")
	// ErrTimeout means that no answer came in time.
	ErrTimeout = fmt.Errorf("no answer in time, %w", ErrIndeterminate)
	// ErrDisconnected means that the connection broke before the answer came.
	ErrDisconnected = fmt.Errorf("connection lost, %w", ErrIndeterminate)
	// ErrDenied means that the server refused the subject to this user; nothing was done.
	ErrDenied = errors.New("permission denied")
	// ErrNoResponders means that nobody listens on the subject; nothing was done.
	ErrNoResponders = errors.New("no responders")
	// ErrClosed means that the pipe was closed; nothing was sent.
	ErrClosed = errors.New("pipeline closed")
)

// Defaults of Config.
const (
	DefaultTimeout = 5 * time.Second

	watchEvery = 100 * time.Millisecond
)

// Config of a Pipe. The zero value is useful.
type Config struct {
	// Timeout of a request, at most an hour; default 5 s. Rounded up to tenths of
	// a second, it takes up to 0.2 s more, and as long as the process was stopped.
	Timeout time.Duration
}

// OnReply gets the answer to a request, or the error that ended it.
type OnReply func(m *nats.Msg, err error)

// OnReplies gets the answers to a request one by one, or the error that ended
// it. Its result says whether more are to come; after an error it is ignored.
type OnReplies func(m *nats.Msg, err error) (more bool)

// Pipe is a connection's table of requests in flight.
type Pipe struct {
	nc      *nats.Conn
	prefix  string // of answer subjects, with its final dot
	timeout uint32 // in ticks
	sub     *nats.Subscription

	mu     sync.Mutex
	ticks  uint32 // of the watch, since the beginning: the clock of deadlines
	slots  []slot
	free   []uint32
	closed bool
	guards map[*context.CancelCauseFunc]struct{} // of contexts made by UntilDenied
	denied []denial                              // the latest, newest last

	watchers sync.WaitGroup
	stop     chan struct{}
}

type slot struct {
	gen      uint32              // of the present use, so that a late answer finds nobody
	one      OnReply             // this is set,
	ack      func(PubAck, error) // or this,
	many     OnReplies           // or this
	subject  string
	deadline uint32 // the tick at which its time is over
	busy     bool   // many is being called, or a lent message read; whoever wants to end the request leaves doom instead
	doom     error  // what ended the request meanwhile
}

func (s *slot) used() bool { return s.one != nil || s.ack != nil || s.many != nil }

// end tells the callback of a slot that was in use how the request ended.
func (s *slot) end(err error) {
	switch {
	case s.one != nil:
		s.one(nil, err)
	case s.ack != nil:
		s.ack(PubAck{}, err)
	default:
		s.many(nil, err)
	}
}

// New opens a pipe on nc. Close it when done; nc stays open.
func New(nc *nats.Conn, cfg Config) (*Pipe, error) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = DefaultTimeout
	}
	p := &Pipe{
		nc: nc, prefix: nc.NewInbox() + ".",
		timeout: uint32(2 + (min(cfg.Timeout, time.Hour)+watchEvery-1)/watchEvery), // a tick that is late, and one that is due, cut nothing short
		stop:    make(chan struct{}),
	}
	sub, err := nc.Subscribe(p.prefix+"*", p.route)
	if err != nil {
		return nil, fmt.Errorf("pipeline: subscribe to answers: %w", err)
	}
	// Answers are bounded by the requests in flight; the client's own limit
	// would drop them silently.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("pipeline: subscribe to answers: %w", err)
	}
	p.sub = sub
	p.watchDenials()
	p.watchers.Add(1)
	go p.watch()
	return p, nil
}

// Send sends m and never waits. If it returns an error nothing was sent and on
// is not called; otherwise on is called once. Send sets m.Reply; m may be
// reused once Send has returned.
func (p *Pipe) Send(m *nats.Msg, on OnReply) error { return p.send(m, slot{one: on}) }

// Publish is Send for a message that a stream is to store: the answer is read as
// its PubAck.
func (p *Pipe) Publish(m *nats.Msg, done func(PubAck, error)) error {
	return p.send(m, slot{ack: done})
}

// Lend is Send for a message that on takes back: it may reuse m, since it is not
// called as long as m is being read.
func (p *Pipe) Lend(m *nats.Msg, on OnReply) error { return p.send(m, slot{one: on, busy: true}) }

// SendMany is Send for a request with several answers: on is called until it
// is satisfied or an error ends the request. The timeout starts anew with each answer.
func (p *Pipe) SendMany(m *nats.Msg, on OnReplies) error { return p.send(m, slot{many: on}) }

// Post sends m and asks for no answer. M may be reused once Post has returned.
func (p *Pipe) Post(m *nats.Msg) error {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if err := p.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("pipeline: publish to %q: %w", m.Subject, err)
	}
	return nil
}

func (p *Pipe) send(m *nats.Msg, s slot) error {
	s.subject = m.Subject
	i, gen, err := p.take(s)
	if err != nil {
		return err
	}
	m.Reply = p.address(i, gen)
	if err := p.nc.PublishMsg(m); err != nil {
		p.mu.Lock()
		_, mine := p.releaseLocked(i, gen)
		p.mu.Unlock()
		if !mine {
			return nil // the callback has had its error from elsewhere
		}
		return fmt.Errorf("pipeline: publish to %q: %w", m.Subject, err)
	}
	if s.busy {
		p.lent(i, gen)
	}
	return nil
}

// lent ends the reading of a lent message.
func (p *Pipe) lent(i, gen uint32) {
	p.mu.Lock()
	s := &p.slots[i]
	if s.gen != gen || !s.used() {
		p.mu.Unlock()
		return // answered
	}
	s.busy = false
	doom, was := s.doom, *s
	if doom != nil {
		p.releaseLocked(i, gen)
	}
	p.mu.Unlock()
	if doom != nil {
		was.end(doom)
	}
}

func (p *Pipe) address(i, gen uint32) string {
	var room [96]byte // on the stack
	return string(strconv.AppendUint(append(room[:0], p.prefix...), uint64(gen)<<32|uint64(i), 36))
}

func (p *Pipe) take(s slot) (i, gen uint32, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, 0, ErrClosed
	}
	s.deadline = p.ticks + p.timeout
	if n := len(p.free); n > 0 {
		i, p.free = p.free[n-1], p.free[:n-1]
	} else {
		i = uint32(len(p.slots))
		p.slots = append(p.slots, slot{})
	}
	s.gen = p.slots[i].gen + 1
	p.slots[i] = s
	return i, s.gen, nil
}

// releaseLocked ends the use of a slot and returns what it held; mine is false
// if that use had ended before.
func (p *Pipe) releaseLocked(i, gen uint32) (was slot, mine bool) {
	if int(i) >= len(p.slots) {
		return slot{}, false
	}
	was = p.slots[i]
	if was.gen != gen || !was.used() {
		return slot{}, false
	}
	p.slots[i] = slot{gen: gen}
	p.free = append(p.free, i)
	return was, true
}

// route hands an answer to the callback of its request.
func (p *Pipe) route(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[len(p.prefix):], 36, 64)
	if err != nil {
		return
	}
	i, gen := uint32(n), uint32(n>>32)
	nobody := len(m.Data) == 0 && len(m.Header) > 0 && m.Header.Get("Status") == "503"

	p.mu.Lock()
	if int(i) < len(p.slots) && p.slots[i].gen == gen && p.slots[i].many != nil && !nobody {
		p.slots[i].busy = true
		p.slots[i].deadline = p.ticks + p.timeout
		many := p.slots[i].many
		p.mu.Unlock()
		p.routeMany(i, gen, many, m)
		return
	}
	was, mine := p.releaseLocked(i, gen)
	p.mu.Unlock()
	switch {
	case !mine:
	case nobody:
		was.end(ErrNoResponders)
	case was.ack != nil:
		was.ack(ParsePubAck(m.Data))
	default:
		was.one(m, nil)
	}
}

func (p *Pipe) routeMany(i, gen uint32, many OnReplies, m *nats.Msg) {
	more := many(m, nil)
	p.mu.Lock()
	s := &p.slots[i] // still ours: a busy slot is left alone
	s.busy = false
	doom := s.doom
	if !more || doom != nil {
		p.releaseLocked(i, gen)
	}
	p.mu.Unlock()
	if more && doom != nil {
		many(nil, doom)
	}
}

// Close fails what is in flight with ErrDisconnected and waits for the pipe's
// goroutine. It returns nil; a second call does nothing.
func (p *Pipe) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	close(p.stop)
	p.watchers.Wait()
	_ = p.sub.Unsubscribe() // fails only when the connection is gone, and the subscription with it
	p.fail(ErrDisconnected, func(*slot) bool { return true })
	return nil
}

// fail ends every request that match selects.
func (p *Pipe) fail(err error, match func(*slot) bool) {
	p.mu.Lock()
	var ended []slot
	for i := range p.slots {
		s := &p.slots[i]
		if !s.used() || !match(s) {
			continue
		}
		if s.busy {
			s.doom = err
			continue
		}
		if was, mine := p.releaseLocked(uint32(i), s.gen); mine {
			ended = append(ended, was)
		}
	}
	p.mu.Unlock()
	for i := range ended {
		ended[i].end(err)
	}
}

// watch ends requests whose time is over or whose connection broke.
func (p *Pipe) watch() {
	defer p.watchers.Done()
	lost := p.nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	defer p.nc.RemoveStatusListener(lost)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case _, ok := <-lost:
			if !ok {
				lost = nil // the connection is closed for good
			}
			p.fail(ErrDisconnected, func(*slot) bool { return true })
		case <-tick.C:
			p.mu.Lock()
			p.ticks++
			now := p.ticks
			p.mu.Unlock()
			p.fail(ErrTimeout, func(s *slot) bool { return int32(now-s.deadline) >= 0 })
		}
	}
}

// watchDenials turns the connection's asynchronous permission errors into the
// failure of the requests they belong to, which otherwise would only time out.
func (p *Pipe) watchDenials() {
	before := p.nc.ErrorHandler()
	p.nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if subject, ok := deniedPublish(err); ok {
			p.note(denial{subject, time.Now()})
			denied := fmt.Errorf("%w: publish to %q", ErrDenied, subject)
			p.fail(denied, func(s *slot) bool { return s.subject == subject })
			if strings.HasPrefix(subject, "$JS.") {
				p.warn(denied)
			}
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
}

// denial is a subject that the server refused to this user.
type denial struct {
	subject string
	at      time.Time
}

// maxDenials is how many of the latest are remembered.
const maxDenials = 64

func (p *Pipe) note(d denial) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.denied) == maxDenials {
		p.denied = append(p.denied[:0], p.denied[1:]...)
	}
	p.denied = append(p.denied, d)
}

// Denied returns the latest subject that match accepts and that the server refused to
// this user since then; empty if there is none. What has no answer, such as an
// ack, is learned of in no other way.
func (p *Pipe) Denied(since time.Time, match func(subject string) bool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range slices.Backward(p.denied) {
		if d.at.After(since) && match(d.subject) {
			return d.subject
		}
	}
	return ""
}

// UntilDenied returns a context that ends, with a cause that wraps ErrDenied and
// names the subject, once the server denies this connection a request to
// JetStream. It is for requests that the client library makes, which would only
// time out. Call the function when done. A denial that belongs to another
// request of the same connection ends the context too.
func (p *Pipe) UntilDenied(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.guards == nil {
		p.guards = make(map[*context.CancelCauseFunc]struct{})
	}
	p.guards[&cancel] = struct{}{}
	return ctx, func() {
		p.mu.Lock()
		delete(p.guards, &cancel)
		p.mu.Unlock()
		cancel(nil)
	}
}

// warn ends the contexts made by UntilDenied.
func (p *Pipe) warn(denied error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for cancel := range p.guards {
		(*cancel)(denied)
	}
}

func deniedPublish(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	if !ok {
		_, rest, ok = strings.Cut(err.Error(), `publish to "`)
	}
	if !ok {
		return "", false
	}
	subject, _, ok = strings.Cut(rest, `"`)
	return subject, ok
}
