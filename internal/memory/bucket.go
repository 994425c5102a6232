package memory

import (
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// bucket is the pool's entries. Server.mu guards it.
type bucket struct {
	last uint64
	keys map[command.Token][]*revision // what is stored, oldest first
	all  []*revision                   // whatever was, for replicas that lag
}

// revision is one stored entry.
type revision struct {
	seq     uint64
	key     command.Token
	at      time.Time
	data    []byte
	label   kvstate.State // as a header names it
	marker  bool          // only says that the key was deleted
	expires time.Time     // zero for never
}

func (r *revision) entry() kvstate.Entry {
	if r.marker {
		return kvstate.Entry{Key: r.key, Revision: r.seq, At: r.at}
	}
	return kvstate.NewEntry(r.key, r.seq, r.at, r.label, r.data)
}

// storing is what a write asks for.
type storing struct {
	key    command.Token
	data   []byte
	label  kvstate.State
	marker bool
	over   *uint64 // revision to replace; nil for any
	keep   time.Duration
	rollup bool // the revisions below it go
}

// newest returns the newest revision that has not expired, or nil. Where one
// has expired, the one below it shows again.
func (b *bucket) newest(key command.Token) *revision {
	revs := b.keys[key]
	kept := revs[:0]
	for _, r := range revs {
		if r.expires.IsZero() || time.Now().Before(r.expires) {
			kept = append(kept, r)
		}
	}
	b.keys[key] = kept
	if len(kept) == 0 {
		delete(b.keys, key)
		return nil
	}
	return kept[len(kept)-1]
}

// write stores an entry if the key still has the revision that it is to replace.
func (s *Server) write(by string, w storing) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.bucket
	var last uint64
	if r := b.newest(w.key); r != nil {
		last = r.seq
	}
	if w.over != nil && *w.over != last {
		r := revision{key: w.key, seq: *w.over, data: w.data, at: time.Now()}
		s.noteLocked(by, Event{What: Refused, Entry: r.entry()})
		return 0, fmt.Errorf("kvstate: write %s: %w: the last revision is %d, not %d", w.key, kvstate.ErrStale, last, *w.over)
	}
	b.last++
	r := &revision{seq: b.last, key: w.key, at: time.Now(), data: w.data, label: w.label, marker: w.marker}
	if w.keep > 0 {
		r.expires = r.at.Add(w.keep)
	}
	revs := b.keys[w.key]
	if w.rollup {
		revs = nil
	}
	if revs = append(revs, r); len(revs) > kvstate.History {
		revs = revs[len(revs)-kvstate.History:]
	}
	b.keys[w.key] = revs
	b.all = append(b.all, r)
	e := r.entry()
	s.accountLocked(e)
	what := Written
	if w.marker {
		what = Removed
	}
	s.noteLocked(by, Event{What: what, Entry: e})
	return r.seq, nil
}

// accountLocked notes which sequences an entry speaks for.
func (s *Server) accountLocked(e kvstate.Entry) {
	if seq, ok := kvstate.AbsorbedSeq(e.Key); ok {
		s.settled[seq] = true
	}
	if e.Record != nil && e.Record.State.Terminal() {
		for _, seq := range e.Record.Seqs {
			s.settled[seq] = true
		}
	}
}

// Entry returns what the bucket holds under key.
func (s *Server) Entry(key command.Token) kvstate.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.bucket.newest(key); r != nil {
		return r.entry()
	}
	return kvstate.Entry{Key: key}
}

// oldest returns the oldest revision that is still stored under key.
func (s *Server) oldest(key command.Token) kvstate.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bucket.newest(key) == nil {
		return kvstate.Entry{Key: key}
	}
	return s.bucket.keys[key][0].entry()
}

func (s *Server) lastRevision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bucket.last
}

// entries returns the newest entry of every key that has one, markers left out.
func (s *Server) entries() []kvstate.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []kvstate.Entry
	for _, r := range s.bucket.all {
		if r == s.bucket.newest(r.key) && !r.marker {
			all = append(all, r.entry())
		}
	}
	return all
}

// entryBehind is Entry on a replica that has not seen the newest writes.
func (s *Server) entryBehind(key command.Token, behind int) kvstate.Entry {
	if behind <= 0 {
		return s.Entry(key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.bucket.all) - 1 - behind; i >= 0; i-- {
		if r := s.bucket.all[i]; r.key == key {
			return r.entry()
		}
	}
	return kvstate.Entry{Key: key}
}

// Delete puts a delete marker over a key, as an operator would by hand. With
// purge, the revisions below it go as well.
func (s *Server) Delete(key command.Token, purge bool) {
	_, _ = s.write("", storing{key: key, marker: true, rollup: purge}) // expects no revision, so it cannot be refused
}
