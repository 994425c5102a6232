package kvstate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// newStore starts a server with the bucket of a pool.
func newStore(t *testing.T, settings tallyman.Settings) (*kvstate.Store, jetstream.Stream) {
	t.Helper()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, settings, tallyman.Topology{})
	bucket, err := pooltest.JetStream(t, nc).Stream(t.Context(), "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	return p.Records(), bucket
}

func write(t *testing.T, s *kvstate.Store, r *kvstate.Record) uint64 {
	t.Helper()
	revision, err := s.WriteWait(t.Context(), command.Token(r.ID), r)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func TestStore_ReadManyBeyondOneAnswer(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t, tallyman.Settings{})
	// The server answers with 8 MiB at a time: this takes three answers.
	const n, size = 30, 700 << 10
	want := map[command.Token]*kvstate.Record{}
	var keys []command.Token
	for i := range n {
		key := command.Token(fmt.Sprint("big-", i))
		r := &kvstate.Record{ID: string(key), Kind: "k", State: kvstate.Claimed, Checkpoint: bytes.Repeat([]byte{byte(i)}, size)}
		r.Revision = write(t, s, r)
		want[key] = r
		// Among them are some that do not exist, and every fifth twice.
		if keys = append(keys, key); i%5 == 0 {
			keys = append(keys, command.Token(fmt.Sprint("none-", i)), key)
		}
	}
	for name, asked := range map[string][]command.Token{
		"all of them, some twice": keys,
		"one key":                 {"big-7"},
		"one key three times":     {"big-7", "big-7", "big-7"},
		"keys that do not exist":  {"none", "none", "never"},
		"the last before the first, with one that does not exist": {"big-29", "none", "big-0"},
	} {
		entries, err := s.ReadManyWait(t.Context(), asked)
		if err != nil || len(entries) != len(asked) {
			t.Errorf("%s: got %d entries, %v; want %d", name, len(entries), err, len(asked))
			continue
		}
		for i, e := range entries {
			r := want[asked[i]]
			switch {
			case e.Key != asked[i]:
				t.Errorf("%s: entry %d has key %q, want %q", name, i, e.Key, asked[i])
			case r == nil && (e.Revision != 0 || e.Record != nil || e.Raw != nil):
				t.Errorf("%s: %q: got revision %d, want none", name, e.Key, e.Revision)
			case r != nil && (e.Record == nil || e.Revision != r.Revision || e.Record.ID != r.ID || !bytes.Equal(e.Record.Checkpoint, r.Checkpoint)):
				t.Errorf("%s: %q: got revision %d, %v; want %d with its checkpoint", name, e.Key, e.Revision, e.Err, r.Revision)
			}
		}
	}
	for _, bad := range [][]command.Token{nil, make([]command.Token, kvstate.MaxBatch+1)} {
		if _, err := s.ReadManyWait(t.Context(), bad); err == nil {
			t.Errorf("read %d keys at once: no error", len(bad))
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ReadManyWait(over, []command.Token{"big-0"}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: got %v, want the entries or context.Canceled", err)
	}
}

// last returns the newest stored message of a key, and how many there are.
func last(t *testing.T, bucket jetstream.Stream, key string) (head nats.Header, revisions uint64) {
	t.Helper()
	subject := "$KV.main." + key
	m, err := bucket.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	info, err := bucket.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	return m.Header, info.State.Subjects[subject]
}

// A terminal record expires as a whole: what it was written over must not come
// to light again when it is gone.
func TestStore_TerminalRecordsExpireAndCoverNothing(t *testing.T) {
	t.Parallel()
	const retention = 90 * time.Minute
	s, bucket := newStore(t, tallyman.Settings{Retention: retention})
	for _, c := range []struct {
		state     kvstate.State
		over      bool // an earlier revision
		ttl       string
		rollup    string
		revisions uint64
	}{
		{kvstate.Claimed, false, "", "", 1},
		{kvstate.Claimed, true, "", "", 2},
		{kvstate.Waiting, true, "", "", 2},
		{kvstate.Parked, false, "", "", 1}, // waits for a human, however long
		{kvstate.Parked, true, "", "", 2},
		{kvstate.Completed, false, "5400", "", 1},
		{kvstate.Completed, true, "5400", "sub", 1},
		{kvstate.Cancelled, true, "5400", "sub", 1},
		{kvstate.Discarded, true, "5400", "sub", 1},
	} {
		r := &kvstate.Record{ID: fmt.Sprintf("%s-%v", c.state, c.over), Kind: "k", State: kvstate.Claimed}
		if c.over {
			r.Revision = write(t, s, r)
		}
		r.State = c.state
		write(t, s, r)
		head, revisions := last(t, bucket, r.ID)
		if ttl, rollup := head.Get(jetstream.MsgTTLHeader), head.Get(jetstream.MsgRollup); ttl != c.ttl || rollup != c.rollup {
			t.Errorf("%s over an earlier revision %v: got TTL %q and rollup %q, want %q and %q", c.state, c.over, ttl, rollup, c.ttl, c.rollup)
		}
		if revisions != c.revisions {
			t.Errorf("%s over an earlier revision %v: got %d revisions, want %d", c.state, c.over, revisions, c.revisions)
		}
	}
}

func TestStore_ReceiptIsGoneAfterItsRetention(t *testing.T) {
	t.Parallel()
	s, bucket := newStore(t, tallyman.Settings{})
	s.Keep(time.Second)
	r := &kvstate.Record{ID: "a", Kind: "k", State: kvstate.Claimed}
	r.Revision = write(t, s, r)
	r.State = kvstate.Completed
	done := write(t, s, r)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		e, err := s.Read(ctx, "a")
		if err != nil {
			t.Fatalf("waiting for the receipt to expire: %v", err)
		}
		if e.Raw == nil {
			break
		}
		if e.Revision != done {
			t.Fatalf("got revision %d, %+v; want the receipt of revision %d until it expires", e.Revision, e.Record, done)
		}
		<-tick.C
	}
	if _, err := bucket.GetLastMsgForSubject(ctx, "$KV.main.a"); !errors.Is(err, jetstream.ErrMsgNotFound) {
		t.Errorf("got %v, want no revision and no marker left", err)
	}
	// The id is free, and whatever its next record is, it comes later.
	r.State, r.Revision = kvstate.Claimed, 0
	if again := write(t, s, r); again <= done {
		t.Errorf("got revision %d after %d, want a higher one", again, done)
	}
}

// What is no record is kept as long as it says, and written only over what was seen.
func TestStore_Entries(t *testing.T) {
	t.Parallel()
	s, bucket := newStore(t, tallyman.Settings{Retention: 90 * time.Minute})
	for key, expire := range map[command.Token]bool{kvstate.AbsorbedKey(7): true, kvstate.PayloadKey("a"): false} {
		if _, err := pipeline.AwaitWrite(t.Context(), func(done func(uint64, error)) error { return s.Put(key, []byte("x"), expire, done) }); err != nil {
			t.Fatal(err)
		}
		want := ""
		if expire {
			want = "5400"
		}
		if head, _ := last(t, bucket, string(key)); head.Get(jetstream.MsgTTLHeader) != want {
			t.Errorf("%s is kept for %q seconds, want %q", key, head.Get(jetstream.MsgTTLHeader), want)
		}
	}
	for range 2 {
		if err := s.Probe(t.Context(), kvstate.ProbeKey("w")); err != nil {
			t.Fatal(err)
		}
	}
	if head, revisions := last(t, bucket, string(kvstate.ProbeKey("w"))); head.Get(jetstream.MsgTTLHeader) != "60" || revisions != 1 {
		t.Errorf("a probe leaves %d revisions for %q seconds, want 1 for 60", revisions, head.Get(jetstream.MsgTTLHeader))
	}
	if err := s.PutWait(t.Context(), kvstate.KeyAudit, []byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.PutWait(t.Context(), kvstate.KeyAudit, []byte("other"), 0); !errors.Is(err, kvstate.ErrStale) {
		t.Errorf("over another revision: got %v, want %v", err, kvstate.ErrStale)
	}
	if e, err := s.Read(t.Context(), kvstate.KeyAudit); err != nil || string(e.Raw) != "one" {
		t.Errorf("got %q, %v, want what was written first", e.Raw, err)
	}
}
