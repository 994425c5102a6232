package sweep

import (
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/stream"
)

// ledger knows which sequences of a command stream were acked on proof, by this
// worker or by others that told of it. It may know less than is true, never
// more. It is safe for concurrent use.
type ledger struct {
	mu      sync.Mutex
	created time.Time           // of the stream whose sequences these are
	acked   map[string]*seqSet  // by queue
	fresh   map[string][]uint64 // acked here, and not yet told to others
	any     bool                // something was acked here since it was last asked
}

// ledgerChunks bounds what is known of one queue: 32 million sequences in a
// row, or 8,192 that lie far apart. It takes 4 MB then. What is beyond is looked up.
const ledgerChunks = 8192

// ledgerQueues bounds the queues of which something is known.
const ledgerQueues = 1024

// maxFresh bounds what waits to be told of one queue.
const maxFresh = 1 << 20

// add notes that this worker has acked a sequence.
func (l *ledger) add(queue string, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.any = true
	if l.fresh == nil {
		l.fresh = map[string][]uint64{}
	}
	if fresh := l.fresh[queue]; len(fresh) < maxFresh {
		l.fresh[queue] = append(fresh, seq)
	}
}

// hear notes what some worker has told, this one included.
func (l *ledger) hear(queue string, created time.Time, runs []stream.Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.created.Equal(created) || created.IsZero() {
		return // of a stream that is no more, or that this worker has not looked at yet
	}
	if _, known := l.acked[queue]; !known && len(l.acked) >= ledgerQueues {
		return
	}
	s := l.setLocked(queue)
	for _, r := range runs {
		for seq := r.From; seq < r.From+r.Count; seq++ {
			s.add(seq)
		}
	}
}

func (l *ledger) setLocked(queue string) *seqSet {
	if l.acked == nil {
		l.acked = map[string]*seqSet{}
	}
	s := l.acked[queue]
	if s == nil {
		s = &seqSet{chunks: map[uint64]*chunk{}}
		l.acked[queue] = s
	}
	return s
}

// settle moves what this worker has acked into what is known, and returns it
// for the others.
func (l *ledger) settle() map[string][]stream.Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	told := make(map[string][]stream.Run, len(l.fresh))
	for queue, seqs := range l.fresh {
		s := l.setLocked(queue)
		for _, seq := range seqs {
			s.add(seq)
		}
		told[queue] = stream.Runs(seqs)
	}
	clear(l.fresh)
	return told
}

// begin makes the ledger one of the stream that was made at created. What was
// known of another is forgotten; what was acked and is not settled yet as well,
// unless this is the first look.
func (l *ledger) begin(created time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.created.Equal(created) {
		return
	}
	if !l.created.IsZero() {
		clear(l.fresh)
	}
	clear(l.acked)
	l.created = created
}

// forget drops everything: the sequences may mean other commands now.
func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.fresh)
	clear(l.acked)
}

// stir notes that there may be something to sweep.
func (l *ledger) stir() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.any = true
}

// stirred reports whether this worker has acked anything since the last call.
func (l *ledger) stirred() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.any
	l.any = false
	return was
}

// has reports whether a sequence of a queue is known to be acked.
func (l *ledger) has(queue string, seq uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.acked[queue]
	return s != nil && s.has(seq)
}

// through returns the first sequence at or after from that is not known to be
// acked in any queue that floors names, lies above that queue's floor, or above limit.
//
// What others told is believed of the queue that they named, and which queue a sequence
// belongs to is not looked at here: so limit is to be below what any queue has not acked.
func (l *ledger) through(from, limit uint64, floors map[string]uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	type known struct {
		set   *seqSet
		floor uint64
	}
	var all []known
	for queue, floor := range floors {
		if set := l.acked[queue]; set != nil && floor > 0 {
			all = append(all, known{set, min(floor, limit)})
		}
	}
	for {
		if !slices.ContainsFunc(all, func(k known) bool { return from <= k.floor && k.set.has(from) }) {
			return from
		}
		from++
	}
}

// drop forgets the sequences below below, which have left the stream.
func (l *ledger) drop(below uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.acked {
		s.drop(below)
	}
}

// chunk holds one bit for each of 4,096 sequences.
type chunk [64]uint64

// seqSet is a set of sequences, in chunks.
type seqSet struct {
	chunks map[uint64]*chunk
	last   *chunk // that was used last, since sequences come in order
	index  uint64 // its number
	least  uint64 // below this all are forgotten
}

func (s *seqSet) add(seq uint64) {
	if seq < s.least {
		return
	}
	n := seq / 4096
	c := s.at(n)
	if c == nil {
		if len(s.chunks) >= ledgerChunks {
			return
		}
		c = new(chunk)
		s.chunks[n] = c
		s.last, s.index = c, n
	}
	c[seq%4096/64] |= 1 << (seq % 64)
}

func (s *seqSet) has(seq uint64) bool {
	if seq < s.least {
		return false
	}
	c := s.at(seq / 4096)
	return c != nil && c[seq%4096/64]&(1<<(seq%64)) != 0
}

func (s *seqSet) at(n uint64) *chunk {
	if s.last == nil || s.index != n {
		c := s.chunks[n]
		if c == nil {
			return nil
		}
		s.last, s.index = c, n
	}
	return s.last
}

func (s *seqSet) drop(below uint64) {
	s.least = max(s.least, below)
	for n := range s.chunks {
		if (n+1)*4096 <= below {
			delete(s.chunks, n)
		}
	}
	s.last = nil
}
