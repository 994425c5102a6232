package memory

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Config of a Server. The zero value is useful.
type Config struct {
	Pool       string        // default "main"
	Queues     []string      // default "default"
	Lease      time.Duration // ack wait of every queue; default 30 s
	Retention  time.Duration // of final records; default for ever
	MaxPayload int           // bytes; default 1 MiB
}

// Server holds a pool's stream and bucket.
type Server struct {
	cfg Config

	mu      sync.Mutex
	stream  commandStream
	bucket  bucket
	log     []Event
	broken  []string
	settled map[uint64]bool // sequences that an entry has accounted for, ever
}

// NewServer returns a server with an empty pool.
func NewServer(cfg Config) *Server {
	if cfg.Pool == "" {
		cfg.Pool = "main"
	}
	if len(cfg.Queues) == 0 {
		cfg.Queues = []string{command.DefaultQueue}
	}
	if cfg.Lease <= 0 {
		cfg.Lease = 30 * time.Second
	}
	if cfg.MaxPayload <= 0 {
		cfg.MaxPayload = 1 << 20
	}
	s := &Server{cfg: cfg, settled: map[uint64]bool{}}
	s.stream.init(cfg.Queues)
	s.bucket.keys = map[command.Token][]*revision{}
	return s
}

// What happened at the server.
type What string

// What can happen.
const (
	Stored    What = "stored"    // a command; Seq, Subject
	Delivered What = "delivered" // to By; Seq, Deliveries
	Acked     What = "acked"     // Seq has left the stream
	Naked     What = "nak"       // Seq comes again after Delay
	Extended  What = "extended"  // the lease of Seq began anew
	Late      What = "late"      // an answer about Seq, which is not pending any more
	Written   What = "written"   // Entry, which is what is stored from now on
	Refused   What = "refused"   // a write over another revision than the last
	Removed   What = "removed"   // by hand: Seq, or a marker at Entry
)

// Event is one thing that happened at the server. The order of the log is the
// order in which things took effect.
type Event struct {
	At         time.Time
	What       What
	By         string // name of the handle; empty for an operator's hand
	Seq        uint64
	Subject    string
	Token      command.Token
	Deliveries uint64
	Delay      time.Duration
	Entry      kvstate.Entry
}

func (e Event) String() string {
	s := fmt.Sprintf("%s %-9s", e.At.Format("15:04:05.000000"), e.What)
	if e.Seq > 0 {
		s += fmt.Sprintf(" #%d %s", e.Seq, e.Token)
	}
	if e.What == Delivered {
		s += fmt.Sprintf(" for the %d. time", e.Deliveries)
	}
	if e.What == Naked {
		s += fmt.Sprintf(" for %v", e.Delay)
	}
	if e.Entry.Key != "" {
		s += fmt.Sprintf(" %s@%d", e.Entry.Key, e.Entry.Revision)
		if r := e.Entry.Record; r != nil {
			s += fmt.Sprintf(" %s by %s, attempt %d, token %d, offset %d", r.State, r.Owner, r.Attempt, r.Token, r.Offset)
			if r.Reason != "" {
				s += ", " + string(r.Reason)
			}
		}
	}
	if e.By != "" {
		s += " (" + e.By + ")"
	}
	return s
}

// Log returns what has happened so far.
func (s *Server) Log() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Broken lists what no worker may do: acks that took a command out of the stream
// for which no durable entry accounted (I2), and records, naks and heartbeats
// that were sent after the end of the sender's lease (I4). The server itself
// would have taken all of these.
func (s *Server) Broken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.broken)
}

func (s *Server) noteLocked(by string, e Event) {
	e.At, e.By = time.Now(), by
	s.log = append(s.log, e)
}

// forget drops the pulls of a handle whose connection is gone.
func (s *Server) forget(h *Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.stream.queues {
		q.pulls = slices.DeleteFunc(q.pulls, func(p *pull) bool { return p.h == h })
	}
}
