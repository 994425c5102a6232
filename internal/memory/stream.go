package memory

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/stream"
)

// commandStream is the pool's work queue. Server.mu guards it.
type commandStream struct {
	last     uint64
	messages map[uint64]*message
	queues   map[string]*queue
	recent   map[string]recent // by message id: the duplicate window
	timer    *time.Timer       // for the next thing that is due
	arrived  uint64            // deliveries so far: the consumer's sequence
}

type recent struct {
	seq uint64
	at  time.Time
}

// message is one stored command.
type message struct {
	seq        uint64
	subject    string
	queue      string
	kind       string
	token      command.Token
	header     nats.Header
	payload    []byte
	at         time.Time
	deliveries uint64
	pending    bool      // delivered and neither acked nor to be delivered at once
	due        time.Time // while pending: when it comes again
}

// queue is a consumer.
type queue struct {
	fresh []uint64 // never delivered, in order
	again []uint64 // to be delivered again
	pulls []*pull  // waiting, the next to be served first
}

// pull is a request for deliveries, as both sides know it.
type pull struct {
	h       *Handle
	queue   string
	deliver func(*pull, *nats.Msg) // runs at the handle; nil says that the pull has expired
	sentAt  time.Time              // by the handle
	asked   int                    // owned by the fetcher: what it still expects
	left    int                    // owned by the server: what it still owes
	expires time.Time
}

func (c *commandStream) init(queues []string) {
	c.messages, c.recent, c.queues = map[uint64]*message{}, map[string]recent{}, map[string]*queue{}
	for _, name := range queues {
		c.queues[name] = &queue{}
	}
}

// publish stores a command, unless the stream holds one with its subject.
func (s *Server) publish(by string, m message, id string) (stream.Accepted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.stream
	if r, ok := c.recent[id]; ok && id != "" && time.Since(r.at) < stream.DuplicateWindow {
		return stream.Accepted{Sequence: r.seq, Repeated: true}, nil
	}
	for _, other := range c.messages {
		if other.subject == m.subject {
			return stream.Accepted{}, fmt.Errorf("stream: publish %s: %w", m.subject, stream.ErrRepeated)
		}
	}
	c.last++
	m.seq, m.at = c.last, time.Now()
	c.messages[m.seq] = &m
	if id != "" {
		c.recent[id] = recent{m.seq, m.at}
	}
	s.noteLocked(by, Event{What: Stored, Seq: m.seq, Subject: m.subject, Token: m.token})
	if q := c.queues[m.queue]; q != nil {
		q.fresh = append(q.fresh, m.seq)
		s.serveLocked()
	}
	return stream.Accepted{Sequence: m.seq}, nil
}

// pull takes a request for deliveries on.
func (s *Server) pull(p *pull, expires time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.h.gone() {
		return // nobody listens to the answer
	}
	p.expires = time.Now().Add(expires)
	q := s.stream.queues[p.queue]
	q.pulls = append(q.pulls, p)
	s.serveLocked()
}

// endPull takes a request off the books.
func (s *Server) endPull(p *pull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.stream.queues[p.queue]
	q.pulls = slices.DeleteFunc(q.pulls, func(o *pull) bool { return o == p })
}

// serveLocked does what is due: pulls expire, leases run out, and whoever waits
// gets what there is.
func (s *Server) serveLocked() {
	now := time.Now()
	c := &s.stream
	var late []uint64
	for seq, m := range c.messages {
		if m.pending && !m.due.After(now) {
			late = append(late, seq)
		}
	}
	slices.Sort(late)
	for _, seq := range late {
		s.againLocked(c.messages[seq])
	}
	for _, q := range c.queues {
		q.pulls = slices.DeleteFunc(q.pulls, func(p *pull) bool {
			if p.expires.After(now) {
				return false
			}
			p.h.receive(0, func() { p.deliver(p, nil) })
			return true
		})
		for len(q.pulls) > 0 {
			from := &q.again
			if len(q.again) == 0 {
				from = &q.fresh
			}
			if len(*from) == 0 {
				break
			}
			m := c.messages[(*from)[0]]
			*from = (*from)[1:]
			p := q.pulls[0]
			q.pulls = q.pulls[1:]
			if p.left--; p.left > 0 {
				q.pulls = append(q.pulls, p) // in turn with the others
			}
			s.deliverLocked(p, m)
		}
	}
	s.armLocked(now)
}

// againLocked queues a message for redelivery. It stays pending in name: an ack
// still removes it, a heartbeat still counts, a further nak changes nothing.
func (s *Server) againLocked(m *message) {
	q := s.stream.queues[m.queue]
	if !slices.Contains(q.again, m.seq) {
		q.again = append(q.again, m.seq)
	}
	m.pending = false
}

func (s *Server) deliverLocked(p *pull, m *message) {
	c := &s.stream
	c.arrived++
	m.deliveries++
	m.pending, m.due = true, time.Now().Add(s.cfg.Lease)
	reply := fmt.Sprintf("$JS.ACK.%s.%s.%d.%d.%d.%d.0", stream.Name(s.cfg.Pool), m.queue, m.deliveries, m.seq, c.arrived, m.at.UnixNano())
	s.noteLocked(p.h.name, Event{What: Delivered, Seq: m.seq, Token: m.token, Deliveries: m.deliveries})
	out := &nats.Msg{Subject: m.subject, Reply: reply, Header: m.header, Data: m.payload}
	p.h.receive(0, func() {
		// Not under the server's mutex: the faults may kill the handle.
		switch fate := p.h.faults.fate(OpDeliver); {
		case fate.Lost:
		case fate.Back > 0:
			p.h.receive(fate.Back, func() { p.deliver(p, out) })
		default:
			p.deliver(p, out)
		}
	})
}

// armLocked sets the timer to the next thing that is due.
func (s *Server) armLocked(now time.Time) {
	var next time.Time
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, m := range s.stream.messages {
		if m.pending {
			sooner(m.due)
		}
	}
	for _, q := range s.stream.queues {
		for _, p := range q.pulls {
			sooner(p.expires)
		}
	}
	if s.stream.timer != nil {
		s.stream.timer.Stop()
	}
	if !next.IsZero() {
		s.stream.timer = time.AfterFunc(next.Sub(now), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.serveLocked()
		})
	}
}

// sequence reads the stream sequence out of the subject of an answer; 0, which is none, if there is none.
func sequence(reply string) uint64 {
	parts := strings.Split(reply, ".")
	seq, _ := strconv.ParseUint(parts[min(5, len(parts)-1)], 10, 64)
	return seq
}

// answer takes an ack, a nak or a heartbeat. Like the server it looks at the
// sequence alone, and does not care who sends it.
func (s *Server) answer(by, reply string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seq := sequence(reply)
	c := &s.stream
	m := c.messages[seq]
	if m == nil {
		s.noteLocked(by, Event{What: Late, Seq: seq})
		return
	}
	switch text := string(body); {
	case text == "+ACK":
		s.removeLocked(m)
		s.noteLocked(by, Event{What: Acked, Seq: seq, Token: m.token})
		if !s.settled[seq] {
			s.broken = append(s.broken, fmt.Sprintf("I2: %s acked sequence %d of %s, for which no entry accounts", by, seq, m.token))
		}
	case text == "+WPI":
		m.due = time.Now().Add(s.cfg.Lease)
		s.noteLocked(by, Event{What: Extended, Seq: seq, Token: m.token})
	case strings.HasPrefix(text, "-NAK"):
		var arg struct{ Delay time.Duration }
		_ = json.Unmarshal([]byte(strings.TrimPrefix(text, "-NAK")), &arg) // without one it is at once
		if arg.Delay > 0 {
			q := c.queues[m.queue]
			q.again = slices.DeleteFunc(q.again, func(other uint64) bool { return other == seq })
			m.pending, m.due = true, time.Now().Add(arg.Delay)
		} else {
			s.againLocked(m)
		}
		s.noteLocked(by, Event{What: Naked, Seq: seq, Token: m.token, Delay: arg.Delay})
	}
	s.serveLocked()
}

func (s *Server) removeLocked(m *message) {
	delete(s.stream.messages, m.seq)
	q := s.stream.queues[m.queue]
	if q == nil {
		return
	}
	gone := func(seq uint64) bool { return seq == m.seq }
	q.fresh, q.again = slices.DeleteFunc(q.fresh, gone), slices.DeleteFunc(q.again, gone)
}

// remove takes a command out of the stream for an operator. As an ack, it needs
// an entry that accounts for the sequence.
func (s *Server) remove(by string, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.stream.messages[seq]
	if m == nil {
		return
	}
	s.removeLocked(m)
	s.noteLocked(by, Event{What: Removed, Seq: seq, Token: m.token})
	if !s.settled[seq] {
		s.broken = append(s.broken, fmt.Sprintf("I2: %s removed sequence %d of %s, for which no entry accounts", by, seq, m.token))
	}
}

// Held returns the sequences that the stream holds, in order.
func (s *Server) Held() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	seqs := make([]uint64, 0, len(s.stream.messages))
	for seq := range s.stream.messages {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	return seqs
}

// LastSeq returns the sequence of the newest command that was ever stored.
func (s *Server) LastSeq() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.last
}

// find returns the newest message that match selects.
func (s *Server) find(match func(*message) bool) (stream.Stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *message
	for _, m := range s.stream.messages {
		if match(m) && (found == nil || m.seq > found.seq) {
			found = m
		}
	}
	if found == nil {
		return stream.Stored{}, fmt.Errorf("stream: get: %w", stream.ErrNotFound)
	}
	return stream.Stored{
		Seq: found.seq, Subject: found.subject, Queue: found.queue, Kind: found.kind, Token: found.token,
		Header: found.header, Payload: found.payload, At: found.at,
	}, nil
}
