package kvstate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Movable is an entry with what it takes to store it in another bucket.
type Movable struct {
	Entry
	header nats.Header // what the server makes of it left out
	// Left is how long it is still to be kept; 0 means for ever.
	Left time.Duration
}

// Belongs returns the token of the command that the entry under key belongs to:
// its record, a note, a payload beside the record, or bytes that were damaged.
// Not ok means that it belongs to the bucket or its pool: settings, seals, and what
// is filed under a sequence.
func Belongs(key command.Token) (token command.Token, ok bool) {
	switch text := string(key); {
	case !strings.HasPrefix(text, "_"):
		return key, true
	case strings.HasPrefix(text, notePrefix):
		rest, _, _ := strings.Cut(text[len(notePrefix):], ".")
		token = command.Token(rest)
	case strings.HasPrefix(text, payloadPrefix):
		token = command.Token(text[len(payloadPrefix):])
	default:
		token, _ = CorruptOf(key)
	}
	return token, token != "" && !strings.HasPrefix(string(token), "_") // that of a record parked aside does
}

// ScanMovable is Scan for whoever carries entries into another bucket, and misses
// none that was there when it was called. A scan is read from one replica, which may be
// behind: so an entry is written before, and a scan that did not get that far is made again,
// and visits what it met before once more. What is gone already may be among it.
func (s *Store) ScanMovable(ctx context.Context, visit func(Movable) error) error {
	var end uint64
	for end == 0 {
		var err error
		end, err = s.sendWait(ctx, pipeline.NewMessage(s.Subject(keyEnd), []byte("the end of a scan")))
		if err != nil && (!errors.Is(err, ErrIndeterminate) || ctx.Err() != nil) {
			return err
		}
	}
	for {
		p := scanning{store: s, movable: visit}
		if err := p.run(ctx); err != nil {
			return err
		}
		if p.last >= end {
			break
		}
		if err := pipeline.Sleep(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("kvstate: scan %s: %w", s.stream, err)
		}
	}
	if err := s.remove(ctx, keyEnd, end); err != nil && !errors.Is(err, ErrStale) && !errors.Is(err, ErrIndeterminate) {
		return err // otherwise it is left lying, which harms nobody
	}
	return nil
}

func movable(e Entry, h nats.Header) Movable {
	m := Movable{Entry: e, header: nats.Header{}}
	for name, values := range h {
		if !strings.HasPrefix(name, "Nats-") { // those are about the bucket it comes from
			m.header[name] = values
		}
	}
	if kept, err := strconv.Atoi(h.Get(jetstream.MsgTTLHeader)); err == nil && kept > 0 {
		m.Left = max(time.Until(e.At.Add(time.Duration(kept)*time.Second)), time.Second)
	}
	return m
}

// Adopt stores an entry of another bucket under the same key, unless there is
// one: that stays, and is no error if it is the same, or a record that says the
// same in other words: without the sequences, which count in the stream beside its
// bucket, and the trail. ErrStale means that it says something else. A record is
// stored without the sequences, which mean nothing here. Safe to repeat.
func (s *Store) Adopt(ctx context.Context, m Movable) error {
	body := m.Raw
	if m.Record != nil {
		bare := *m.Record
		bare.Seqs = nil
		var err error
		if body, err = Encode(&bare); err != nil {
			return fmt.Errorf("kvstate: move %s: %w", m.Key, err)
		}
	}
	there := Entry{}
	for {
		err := s.adopt(ctx, m, body, there.Revision)
		if !errors.Is(err, ErrStale) && !errors.Is(err, ErrIndeterminate) {
			return err
		}
		was := there.Revision
		if there, err = s.Read(ctx, m.Key); err != nil {
			return err
		}
		switch {
		case there.Raw != nil && there.Same(m.Entry):
			return nil
		case there.Raw != nil:
			return fmt.Errorf("kvstate: move %s: %w: bucket %s has another entry there, revision %d", m.Key, ErrStale, s.Bucket(), there.Revision)
		case there.Revision == was && ctx.Err() != nil:
			return fmt.Errorf("kvstate: move %s: %w: %w", m.Key, ErrIndeterminate, context.Cause(ctx))
		}
	}
}

func (s *Store) adopt(ctx context.Context, m Movable, body []byte, over uint64) error {
	out := pipeline.NewMessage(s.Subject(m.Key), body)
	for name := range m.header {
		out.Set(name, m.header.Get(name))
	}
	if m.Left > 0 {
		out.Set(jetstream.MsgTTLHeader, ttl(m.Left+time.Second-1)) // whole seconds, and rather one more
	}
	if over > 0 { // the marker of one that was here before: when it goes, nothing may come to light
		out.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	out.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(over, 10))
	_, err := s.sendWait(ctx, out)
	return err
}

// Same reports whether two entries say the same, as Adopt takes it.
func (e Entry) Same(other Entry) bool {
	a, b := e, other
	if a.Record == nil || b.Record == nil {
		return bytes.Equal(a.Raw, b.Raw)
	}
	bare := func(r *Record) []byte {
		c := *r
		c.Seqs, c.Trail = nil, nil
		body, err := Encode(&c)
		if err != nil {
			return nil
		}
		return body
	}
	x, y := bare(a.Record), bare(b.Record)
	return x != nil && bytes.Equal(x, y)
}

// GiveUp takes away an entry that another bucket has adopted, if it still has the
// given revision; ErrStale means that somebody has written it since. Giving up
// what is gone already does no harm.
func (s *Store) GiveUp(ctx context.Context, key command.Token, revision uint64) error {
	if _, ok := Belongs(key); !ok {
		return fmt.Errorf("kvstate: give up %s: it belongs to its bucket", key)
	}
	for {
		err := s.remove(ctx, key, revision)
		if !errors.Is(err, ErrIndeterminate) && !errors.Is(err, ErrStale) || ctx.Err() != nil {
			return err
		}
		e, readErr := s.Read(ctx, key)
		switch {
		case readErr != nil:
			return readErr
		case e.Raw == nil:
			return nil
		case e.Revision != revision:
			return err
		}
	}
}

// raiseWindow is how many writes RaiseTo keeps under way.
const raiseWindow = 256

// RaiseTo sees to it that the next revision of the bucket is above the given one,
// by writing as often as it takes to a key that soon expires. Fencing tokens are
// revisions: those of a record that moves here must go on growing.
func (s *Store) RaiseTo(ctx context.Context, revision uint64) error {
	for {
		last, err := s.LastRevision(ctx)
		if err != nil || last >= revision {
			return err
		}
		var all sync.WaitGroup
		errs := make([]error, min(revision-last, raiseWindow))
		for i := range errs {
			all.Add(1)
			if err := s.send(s.probe(ProbeKey("reshard")), func(_ uint64, err error) { errs[i] = err; all.Done() }); err != nil {
				errs[i] = err // nothing was sent
				all.Done()
			}
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil && !errors.Is(err, ErrIndeterminate) {
			return fmt.Errorf("kvstate: raise %s to revision %d: %w", s.Bucket(), revision, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// Delete deletes a pool's bucket with all that is in it. One that does not
// exist is no error.
func Delete(ctx context.Context, js jetstream.JetStream, pool string) error {
	err := pipeline.Again(ctx, pipeline.DefaultTimeout, func(ctx context.Context) error { return js.DeleteStream(ctx, "KV_"+pool) })
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("kvstate: delete bucket %q: %w", pool, pipeline.Away(err))
	}
	return nil
}
