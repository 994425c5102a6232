package kvstate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// MaxBatch is how many keys the server answers in one ReadMany.
const MaxBatch = 1024

// batchBytes bounds one answer of the server; the rest is asked for again.
const batchBytes = 8 << 20

// ReadMany reads the entries of up to MaxBatch keys in one request and calls
// done with one entry for each key, in the same order. It does not wait. Done
// runs on the pipeline's goroutine and must not block; it is not called if
// ReadMany returns an error.
//
// On a replicated bucket a follower that lags may answer: what is read here
// may be old, so only a write decides.
func (s *Store) ReadMany(keys []command.Token, done func([]Entry, error)) error {
	return s.readMany(keys, 0, done)
}

// readMany leaves the entries of keys empty that were written before revision from.
func (s *Store) readMany(keys []command.Token, from uint64, done func([]Entry, error)) error {
	if len(keys) == 0 || len(keys) > MaxBatch {
		return fmt.Errorf("kvstate: read %d keys at once, the limit is 1 to %d", len(keys), MaxBatch)
	}
	if len(keys) == 1 && from == 0 {
		return s.readOne(keys[0], done)
	}
	b := &batch{store: s, done: done, from: from, entries: make([]Entry, len(keys))}
	for i, k := range keys {
		b.entries[i].Key = k
	}
	return b.send()
}

// readOne is a read of one key, which the server answers at once and with one
// message, where it walks through its keys for several. A lone command waits
// for two of these.
func (s *Store) readOne(key command.Token, done func([]Entry, error)) error {
	body, err := json.Marshal(map[string]string{"last_by_subj": s.prefix + string(key)})
	if err != nil {
		return fmt.Errorf("kvstate: read %s: %w", key, err)
	}
	m := &nats.Msg{Subject: "$JS.API.DIRECT.GET." + s.stream, Data: body}
	err = s.pipe.Send(m, func(m *nats.Msg, err error) {
		if err != nil {
			done(nil, fmt.Errorf("kvstate: read %s: %w", key, err))
			return
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			done([]Entry{s.directEntry(key, m)}, nil)
		case "404":
			done([]Entry{{Key: key}}, nil)
		default:
			done(nil, fmt.Errorf("kvstate: read %s: server says %s %s", key, status, m.Header.Get("Description")))
		}
	})
	if err != nil {
		return fmt.Errorf("kvstate: read %s: %w", key, err)
	}
	return nil
}

// directEntry is what a direct get has found under key.
func (s *Store) directEntry(key command.Token, m *nats.Msg) Entry {
	revision, _ := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	at, _ := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer))
	return entryOf(key, revision, at, m.Header, m.Data)
}

// batch is one ReadMany under way. The pipeline calls it from one goroutine at a time.
type batch struct {
	store   *Store
	from    uint64 // revision to read on from; 0 for the beginning
	upTo    uint64 // revision that the answer is about; 0 before the first
	entries []Entry
	index   map[command.Token]int // built with the first record that comes
	done    func([]Entry, error)
}

// requests are used again: sending copies them.
var requests = sync.Pool{New: func() any { return new([]byte) }}

// maxRequest is the largest request, in bytes, that is kept for the next one.
const maxRequest = 64 << 10

func (b *batch) send() error {
	room := requests.Get().(*[]byte)
	q := b.request((*room)[:0])
	if cap(q) <= maxRequest {
		*room = q
	}
	defer requests.Put(room)
	m := &nats.Msg{Subject: "$JS.API.DIRECT.GET." + b.store.stream, Data: q}
	if err := b.store.pipe.SendMany(m, b.reply); err != nil {
		return fmt.Errorf("kvstate: read batch: %w", err)
	}
	return nil
}

// request appends what the server is asked, in JSON, to q. Every command is read
// in one of these, so it is written by hand.
func (b *batch) request(q []byte) []byte {
	const usual = 32 // bytes of a token
	q = slices.Grow(q, 96+len(b.entries)*(len(b.store.prefix)+usual))
	q = append(q, `{"max_bytes":`...)
	q = strconv.AppendInt(q, batchBytes, 10)
	if b.from > 0 {
		q = strconv.AppendUint(append(q, `,"seq":`...), b.from, 10)
	}
	if b.upTo > 0 {
		q = strconv.AppendUint(append(q, `,"up_to_seq":`...), b.upTo, 10)
	}
	q = append(q, `,"multi_last":`...)
	for i := range b.entries {
		q = append(q, "[,"[min(i, 1)], '"')
		q = appendText(q, b.store.prefix)
		q = appendText(q, string(b.entries[i].Key))
		q = append(q, '"')
	}
	return append(q, "]}"...)
}

// appendText appends s as it stands between the quotes of a JSON string. What
// comes from subjects that were published by hand may hold anything.
func appendText(q []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string is never refused
			return append(q, quoted[1:len(quoted)-1]...)
		}
	}
	return append(q, s...)
}

func (b *batch) reply(m *nats.Msg, err error) (more bool) {
	if err != nil {
		b.done(nil, fmt.Errorf("kvstate: read batch: %w", err))
		return false
	}
	switch status := m.Header.Get("Status"); status {
	case "": // a record
		b.add(m)
		return true
	case "204": // the end of this answer
		b.end(m)
	case "404":
		if m.Header.Get("Description") != "No Results" {
			// A record that was found could not be loaded: replaced between the two.
			b.done(nil, fmt.Errorf("kvstate: read batch: %w: %s", ErrIndeterminate, m.Header.Get("Description")))
			return false
		}
		b.finish()
	default:
		b.done(nil, fmt.Errorf("kvstate: read batch: server says %s %s", status, m.Header.Get("Description")))
	}
	return false
}

func (b *batch) add(m *nats.Msg) {
	if b.index == nil {
		b.index = make(map[command.Token]int, len(b.entries))
		for i := range b.entries {
			b.index[b.entries[i].Key] = i
		}
	}
	key := command.Token(strings.TrimPrefix(m.Header.Get(jetstream.SubjectHeader), b.store.prefix))
	e := b.store.directEntry(key, m)
	if i, ok := b.index[key]; ok {
		b.entries[i] = e
	}
	b.from = e.Revision + 1
}

func (b *batch) end(m *nats.Msg) {
	if left := m.Header.Get("Nats-Num-Pending"); left == "" || left == "0" {
		b.finish()
		return
	}
	b.upTo, _ = strconv.ParseUint(m.Header.Get("Nats-UpTo-Sequence"), 10, 64)
	if err := b.send(); err != nil {
		b.done(nil, err)
	}
}

// finish hands out the entries. A key that was asked for twice has been filled once.
func (b *batch) finish() {
	if len(b.index) > 0 && len(b.index) < len(b.entries) {
		for i := range b.entries {
			b.entries[i] = b.entries[b.index[b.entries[i].Key]]
		}
	}
	b.done(b.entries, nil)
}

// ReadManyWait is ReadMany that waits for the answer, at most until ctx ends.
func (s *Store) ReadManyWait(ctx context.Context, keys []command.Token) ([]Entry, error) {
	return s.readManyWait(ctx, keys, 0)
}

func (s *Store) readManyWait(ctx context.Context, keys []command.Token, from uint64) ([]Entry, error) {
	return pipeline.Await(ctx, func(done func([]Entry, error)) error { return s.readMany(keys, from, done) })
}
