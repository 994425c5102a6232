package kvstate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// bucket starts a server with a pool and returns its bucket, and that as any client sees it.
func bucket(t *testing.T, retention time.Duration) (*kvstate.Store, jetstream.KeyValue) {
	t.Helper()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	p := pooltest.Create(t, nc, tallyman.Settings{Retention: retention}, tallyman.Topology{})
	kv, err := pooltest.JetStream(t, nc).KeyValue(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	return p.Records(), kv
}

func TestStore_Notes(t *testing.T) {
	t.Parallel()
	s, kv := bucket(t, time.Hour)
	note := func(about command.Token, unique string, n kvstate.Note) {
		t.Helper()
		if err := s.Note(t.Context(), about, unique, &n); err != nil {
			t.Fatal(err)
		}
	}
	read := func(about command.Token) ([]kvstate.Note, int) {
		t.Helper()
		notes, left, err := s.Notes(t.Context(), about)
		if err != nil {
			t.Fatal(err)
		}
		return notes, left
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	whole := kvstate.Note{
		At: at, What: kvstate.NoteLeaseLost, Worker: "w", Attempt: 2, Token: 7, Of: "result", Missed: 3, Silence: time.Second,
		NoticedAt: at.Add(time.Second), Seq: 5, Delivery: 4, SubmittedAt: at.Add(-time.Minute), Entry: "_absorbed/5", Text: "why\n",
	}
	note("a/b=20c", "1", whole)
	note("a/b", "1", kvstate.Note{What: kvstate.NoteStuck}) // its id begins like the other
	note("a/b=20c", "2", kvstate.Note{What: kvstate.NoteDropped})

	t.Run("come back whole, in order, and none of another id", func(t *testing.T) {
		got, left := read("a/b=20c")
		if len(got) != 2 || left != 0 || got[1].What != kvstate.NoteDropped || got[0].Revision == 0 {
			t.Fatalf("got %+v and %d more, want two", got, left)
		}
		got[0].Revision = 0
		if got[0] != whole {
			t.Errorf("got %+v, want %+v", got[0], whole)
		}
		if none, _ := read("a"); len(none) != 0 {
			t.Errorf("got %+v of an id without notes", none)
		}
	})
	t.Run("are JSON that any client can read, and expire with receipts", func(t *testing.T) {
		e, err := kv.Get(t.Context(), string(kvstate.NoteKey("a/b=20c", "1")))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"at":"2026-03-01T12:00:00Z"`, `"what":"lease_lost"`, `"worker":"w"`, `"token":7`, `"attempt":2`, `"text":"why\n"`} {
			if !strings.Contains(string(e.Value()), want) {
				t.Errorf("%s is missing in %s", want, e.Value())
			}
		}
	})
	t.Run("written twice are one", func(t *testing.T) {
		note("twice", "x", whole)
		note("twice", "y", whole)
		note("twice", "x", whole)
		if got, _ := read("twice"); len(got) != 2 {
			t.Errorf("got %d notes, want 2", len(got))
		}
	})
	t.Run("that are damaged say so", func(t *testing.T) {
		if _, err := kv.PutString(t.Context(), "_note.torn.1", "nonsense"); err != nil {
			t.Fatal(err)
		}
		got, _ := read("torn")
		if len(got) != 1 || got[0].What != "damaged" || got[0].Entry != "_note.torn.1" || got[0].At.IsZero() || got[0].Text == "" {
			t.Errorf("got %+v, want one that says it is damaged", got)
		}
	})
	t.Run("are no records to a scan", func(t *testing.T) {
		err := s.Scan(t.Context(), func(e kvstate.Entry) error {
			if e.Record != nil || e.Err != nil || !kvstate.Own(e.Key) {
				t.Errorf("%s is taken for a record", e.Key)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Run("beyond the limit are counted, and the newest kept", func(t *testing.T) {
		const n = kvstate.MaxNotes + 30
		answers := make(chan error, n)
		for i := range n {
			body := fmt.Appendf(nil, `{"what":"stuck","attempt":%d}`, i)
			if err := s.Put(kvstate.NoteKey("many", fmt.Sprint(i)), body, true, func(_ uint64, err error) { answers <- err }); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}
		got, left := read("many")
		if len(got) != kvstate.MaxNotes || left != 30 || got[0].Attempt != 30 || got[len(got)-1].Attempt != n-1 {
			t.Errorf("got %d notes and %d more, want the newest %d of %d", len(got), left, kvstate.MaxNotes, n)
		}
	})
}

func TestStore_NotesExpire(t *testing.T) {
	t.Parallel()
	s, _ := bucket(t, time.Second)
	if err := s.Note(t.Context(), "a", "1", &kvstate.Note{What: kvstate.NoteStuck}); err != nil {
		t.Fatal(err)
	}
	for tick := time.NewTicker(20 * time.Millisecond); ; <-tick.C {
		notes, _, err := s.Notes(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if len(notes) == 0 {
			return // the test's own deadline ends it otherwise
		}
	}
}

func TestStore_Revisions(t *testing.T) {
	t.Parallel()
	s, kv := bucket(t, time.Hour)
	var revisions []uint64
	for i, state := range []kvstate.State{kvstate.Claimed, kvstate.Claimed, kvstate.Waiting} {
		r := &kvstate.Record{ID: "a", State: state, Offset: uint64(i)}
		if i > 0 {
			r.Revision = revisions[i-1]
		}
		revision, err := s.WriteWait(t.Context(), "a", r)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, revision)
	}
	t.Run("those that the bucket keeps, oldest first", func(t *testing.T) {
		got, err := s.Revisions(t.Context(), "a")
		if err != nil || len(got) != kvstate.History {
			t.Fatalf("got %d revisions, %v; want %d", len(got), err, kvstate.History)
		}
		for i, e := range got {
			if e.Revision != revisions[i+1] || e.Record == nil || e.Record.Offset != uint64(i+1) || e.At.IsZero() {
				t.Errorf("revision %d: got %+v", i, e)
			}
		}
	})
	t.Run("a deletion is one of them, without bytes", func(t *testing.T) {
		if err := kv.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		got, err := s.Revisions(t.Context(), "a")
		if err != nil || len(got) != 2 || got[0].Record == nil || got[1].Raw != nil || got[1].Revision == 0 {
			t.Errorf("got %+v, %v; want a record and its deletion", got, err)
		}
	})
	t.Run("none of a key that was never written", func(t *testing.T) {
		if got, err := s.Revisions(t.Context(), "none"); err != nil || len(got) != 0 {
			t.Errorf("got %+v, %v; want none", got, err)
		}
	})
	t.Run("a claim whose token is its revision shows it in the trail as well", func(t *testing.T) {
		r, err := (&kvstate.Record{ID: "c"}).Advance(kvstate.Claimed, "w", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		revision, err := s.WriteWait(t.Context(), "c", r)
		if err != nil {
			t.Fatal(err)
		}
		e, err := s.Read(t.Context(), "c")
		if err != nil || e.Record == nil || e.Record.Token != revision || e.Record.Trail[0].Token != revision {
			t.Errorf("got %+v, %v; want the token %d in record and trail", e.Record, err, revision)
		}
	})
}
