package story_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/story"
)

var update = flag.Bool("update", false, "write the golden files anew")

// zero is when the stories begin.
var zero = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time {
	return zero.Add(time.Duration(seconds * float64(time.Second)))
}

// steps makes a trail: seconds, state, owner, token, note.
func trail(steps ...kvstate.Step) []kvstate.Step { return steps }

func step(seconds float64, state kvstate.State, owner string, token uint64, note string) kvstate.Step {
	return kvstate.Step{At: after(seconds), State: state, Owner: owner, Token: token, Note: note}
}

// entry is a stored record. Its owner, token and state are those of its last step.
func entry(revision uint64, r kvstate.Record) kvstate.Entry {
	last := r.Trail[len(r.Trail)-1]
	r.ID, r.Kind, r.State, r.Owner, r.Token, r.Revision = "img-7", "resize", last.State, last.Owner, last.Token, revision
	if r.StoredAt.IsZero() {
		r.StoredAt = last.At
	}
	return kvstate.Entry{Key: "img-7", Revision: revision, Record: &r, Raw: []byte{1}, At: r.StoredAt}
}

// aside is the entry of what was parked aside, two seconds after the beginning.
func aside(key command.Token, reason kvstate.Reason, seqs ...uint64) kvstate.Entry {
	e := entry(9, kvstate.Record{Reason: reason, Error: "it did not fit", Seqs: seqs, Trail: trail(step(2, kvstate.Parked, "worker-2", 0, "it did not fit"))})
	e.Key = key
	return e
}

var terms = story.Terms{Lease: 30 * time.Second, MaxAttempts: 3, Retention: 24 * time.Hour}

var inStream = []story.Copy{{Seq: 7, At: zero, Queue: "default", Kind: "resize", Delivered: story.DeliveredOnce}}

// tales are the evidence of the golden files, which hold the stories.
var tales = map[string]story.Evidence{
	"takeover": {
		Scanned: true,
		Entry: entry(9, kvstate.Record{Attempt: 2, Seqs: []uint64{7}, Result: []byte("ok"), ContentType: "text/plain", Trail: trail(
			step(0.1, kvstate.Claimed, "worker-2", 3, ""), step(31, kvstate.Claimed, "worker-5", 4, ""), step(35, kvstate.Completed, "worker-5", 4, ""))}),
		Notes: []kvstate.Note{
			{At: after(27), What: kvstate.NoteLeaseLost, Worker: "worker-2", Attempt: 1, Token: 3, Missed: 4, Silence: 27 * time.Second, NoticedAt: after(27.1), Seq: 7, Delivery: 1, SubmittedAt: zero},
			{At: after(40), What: kvstate.NoteRefused, Of: "result", Worker: "worker-2", Attempt: 1, Token: 3, Missed: 4, Silence: 27 * time.Second, Seq: 7, Delivery: 1, SubmittedAt: zero},
		},
	},
	"pending":                 {Copies: []story.Copy{{Seq: 7, At: zero, Queue: "slow", Kind: "resize", Delivered: story.DeliveredNever}}},
	"first attempt under way": {Copies: inStream},
	"running": {
		Copies: inStream,
		Earlier: []kvstate.Entry{entry(5, kvstate.Record{Attempt: 2, Offset: 100, Seqs: []uint64{7}, StoredAt: after(45), Trail: trail(
			step(1, kvstate.Waiting, "worker-2", 0, "disk full"), step(40, kvstate.Claimed, "worker-5", 4, ""))})},
		Entry: entry(6, kvstate.Record{Attempt: 2, Offset: 250, Seqs: []uint64{7}, StoredAt: after(50), Trail: trail(
			step(1, kvstate.Waiting, "worker-2", 0, "disk full"), step(40, kvstate.Claimed, "worker-5", 4, ""))}),
	},
	"resumed": {
		Copies: inStream,
		Earlier: []kvstate.Entry{entry(5, kvstate.Record{Attempt: 1, Offset: 100, Seqs: []uint64{7}, StoredAt: after(5), Trail: trail(
			step(1, kvstate.Claimed, "worker-2", 3, ""))})},
		Entry: entry(6, kvstate.Record{Attempt: 2, Offset: 100, Seqs: []uint64{7}, StoredAt: after(40), Trail: trail(
			step(1, kvstate.Claimed, "worker-2", 3, ""), step(40, kvstate.Claimed, "worker-5", 6, ""))}),
	},
	"prepared": {
		Copies: inStream,
		Entry: entry(6, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Intent: []byte("pay"), Trail: trail(
			step(1, kvstate.Claimed, "worker-2", 5, ""), step(2, kvstate.Prepared, "worker-2", 5, ""))}),
	},
	"effect that was taken over": {
		Entry: entry(30, kvstate.Record{Attempt: 2, Seqs: []uint64{7}, Trail: trail(
			step(1, kvstate.Claimed, "worker-2", 5, ""), step(2, kvstate.Prepared, "worker-2", 5, ""),
			step(3, kvstate.Claimed, "worker-2", 5, ""), step(4, kvstate.Prepared, "worker-2", 5, ""),
			step(40, kvstate.Prepared, "worker-5", 9, ""), step(41, kvstate.Claimed, "worker-5", 9, "the effect did not happen"),
			step(42, kvstate.Completed, "worker-5", 9, ""))}),
	},
	"paused":   {Copies: []story.Copy{{Seq: 7, At: zero, Queue: "slow", Kind: "resize", Paused: true, Delivered: story.DeliveredNever}}},
	"unserved": {Copies: []story.Copy{{Seq: 7, At: zero, Queue: "slwo", Kind: "resize", Unserved: true, Delivered: story.DeliveredNever}}},
	"resolved": {
		Entry: entry(30, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Result: []byte("{}"), ResolvedBy: "bob", Trail: trail(
			step(1, kvstate.Parked, "worker-2", 5, "uncertain"), step(90, kvstate.Completed, "bob", 5, "seen on the statement"))}),
	},
	"waiting": {
		Copies: inStream,
		Entry: entry(6, kvstate.Record{Attempt: 2, Seqs: []uint64{7}, NextAt: after(90), Error: "no route", Trail: trail(
			step(1, kvstate.Waiting, "worker-2", 0, "timed out"), step(3, kvstate.Claimed, "worker-2", 5, ""), step(4, kvstate.Waiting, "worker-2", 5, "no route"))}),
	},
	"handed back": {
		Copies: inStream,
		Entry:  entry(6, kvstate.Record{Seqs: []uint64{7}, NextAt: after(4), Trail: trail(step(4, kvstate.Waiting, "worker-2", 0, "handed back at shutdown"))}),
	},
	"stranded": {
		Entry: entry(6, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Trail: trail(step(1, kvstate.Claimed, "worker-2", 5, ""))}),
	},
	"human hands": {
		Entry: entry(20, kvstate.Record{Attempt: 3, Seqs: []uint64{7, 9}, Trail: trail(
			step(1, kvstate.Parked, "worker-2", 0, "exhausted"), step(60, kvstate.Requeued, "alice", 0, "disk was full"),
			step(61, kvstate.Claimed, "worker-5", 15, ""), step(62, kvstate.Parked, "worker-5", 15, "uncertain"),
			step(3600, kvstate.Completed, "bob", 15, "the bank says it was paid"))}),
	},
	"parked": {
		Entry: entry(6, kvstate.Record{Attempt: 3, Seqs: []uint64{7}, Reason: kvstate.ReasonExhausted, Error: "exit status 1: line one\nline two", Trail: trail(
			step(1, kvstate.Parked, "worker-2", 0, "exhausted"))}),
	},
	"cancelled": {
		Entry: entry(6, kvstate.Record{Seqs: []uint64{7}, Trail: trail(step(1, kvstate.Cancelled, "alice", 0, "not wanted"))}),
		Notes: []kvstate.Note{{At: after(5), What: kvstate.NoteRefused, Of: "failure", Worker: "worker-2", Attempt: 1, Text: "command cancelled", Seq: 7, Delivery: 1, SubmittedAt: zero}},
	},
	"discarded": {
		Entry: entry(6, kvstate.Record{Seqs: []uint64{7}, Trail: trail(step(1, kvstate.Parked, "worker-2", 0, "rejected"), step(9, kvstate.Discarded, "alice", 0, ""))}),
	},
	"every note": {
		Copies: inStream,
		Filed:  []kvstate.Entry{{Key: "_absorbed/9", Raw: []byte("img-7"), At: after(6)}},
		Notes: []kvstate.Note{
			{At: after(1), What: kvstate.NoteDropped, Worker: "worker-1", Seq: 7, Delivery: 1, SubmittedAt: zero},
			{At: after(2), What: kvstate.NoteDropped, Worker: "worker-1", Seq: 7, Delivery: 2, Text: "cannot look for the other copy at sequence 7: no answer", SubmittedAt: zero},
			{At: after(3), What: kvstate.NoteHandedBack, Worker: "worker-1", Seq: 7, Delivery: 3, SubmittedAt: zero},
			{At: after(4), What: kvstate.NoteStuck, Worker: "worker-2", Attempt: 1, Seq: 7, Delivery: 4, Text: "the handler went on for 5s", SubmittedAt: zero},
			{At: after(5), What: kvstate.NoteAbsorbed, Worker: "worker-2", Seq: 7, Delivery: 5, SubmittedAt: zero},
			{At: after(6), What: kvstate.NoteAbsorbed, Worker: "worker-2", Seq: 9, Delivery: 1, Entry: "_absorbed/9", SubmittedAt: after(5.5)},
			{At: after(7), What: kvstate.NoteParked, Worker: "worker-2", Seq: 11, Delivery: 1, Entry: "_conflict/11", Text: "the id stands for another command", SubmittedAt: after(6.5)},
			{At: after(8), What: kvstate.NoteParked, Worker: "worker-2", Seq: 7, Delivery: 6, Entry: "_conflict/img-7/2", Text: "conflict", SubmittedAt: zero},
			{At: after(9), What: kvstate.NoteLeaseLost, Worker: "worker-3", Attempt: 2, Silence: 27 * time.Second, NoticedAt: after(600), Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(10), What: kvstate.NoteLeaseLost, Worker: "worker-4", Attempt: 2, Token: 12, Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(11), What: kvstate.NoteRefused, Of: "claim", Worker: "worker-4", Attempt: 2, Text: "written by someone else", Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(12), What: kvstate.NoteRefused, Of: "progress", Worker: "worker-4", Token: 12, Attempt: 2, Text: "written by someone else", Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(13), What: kvstate.NoteRefused, Of: "result", Worker: "worker-4", Token: 12, Attempt: 2, Missed: 1, Silence: 27 * time.Second, Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(13.5), What: kvstate.NoteCancelled, Worker: "worker-4", Seq: 7, Delivery: 7, SubmittedAt: zero},
			{At: after(13.6), What: kvstate.NoteFellBack, Worker: "worker-4", Seq: 7, Delivery: 7, Entry: "_corrupt/img-7/12", Text: "checksum", SubmittedAt: zero},
			{At: after(14), What: "novelty", Worker: "worker-9", Text: "of a newer version"},
		},
		NotesLeft: 3,
	},
	"follow-ups": {
		Parent: &kvstate.Record{ID: "import-1", State: kvstate.Completed},
		Entry: entry(6, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, FollowUps: []command.Command{{ID: "img-7/1", Kind: "mail"}, {ID: "bill", Kind: "pay"}},
			Trail: trail(step(1, kvstate.Completed, "worker-2", 0, ""))}),
		Filed: []kvstate.Entry{{Key: "_conflict/img-7/2", Raw: []byte{1}, At: after(1.1), Record: &kvstate.Record{
			ID: "bill", Owner: "worker-2", State: kvstate.Parked, Reason: kvstate.ReasonConflict, Error: "conflict: another payload"}}},
	},
	"clocks that differ": {
		Copies: inStream,
		Entry: entry(6, kvstate.Record{Attempt: 2, Seqs: []uint64{7}, Trail: trail(
			step(-5, kvstate.Waiting, "slow-clock", 0, "boom"), step(-3, kvstate.Claimed, "slow-clock", 5, ""))}),
	},
	"record damaged": {
		Copies: inStream,
		Earlier: []kvstate.Entry{entry(5, kvstate.Record{Attempt: 1, Offset: 10, Seqs: []uint64{7}, Trail: trail(
			step(1, kvstate.Claimed, "worker-2", 5, ""))})},
		Entry: kvstate.Entry{Key: "img-7", Revision: 8, Raw: []byte("x"), At: after(5), Err: command.ErrMalformed},
	},
	"record deleted": {
		Earlier: []kvstate.Entry{entry(5, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Trail: trail(step(1, kvstate.Claimed, "worker-2", 5, ""))})},
		Entry:   kvstate.Entry{Key: "img-7", Revision: 8, At: after(5)},
	},
	"expired": {
		Scanned: true,
		Notes:   []kvstate.Note{{At: after(1), What: kvstate.NoteStuck, Worker: "worker-2", Seq: 7, Delivery: 1, Text: "it went on", SubmittedAt: zero}},
	},
	"outbox": {
		Copies: inStream,
		Extra:  []story.Event{{At: after(-1), Source: "outbox", What: "written", Text: "The outbox of shop.db holds it as row 12."}},
	},
	"long trail": {
		Scanned: true,
		Entry: entry(60, kvstate.Record{Attempt: 40, Seqs: []uint64{7}, Reason: kvstate.ReasonRejected, Error: "no", Trail: func() []kvstate.Step {
			var all []kvstate.Step
			for i := range kvstate.MaxTrail - 1 {
				all = append(all, step(float64(i), kvstate.Waiting, "worker-2", 0, "no"))
			}
			return append(all, step(20, kvstate.Parked, "worker-2", 0, "rejected"))
		}()}),
		Copies: inStream,
	},
	"acked without an outcome": {Scanned: true, Copies: []story.Copy{{Seq: 7, At: zero, Queue: "default", Kind: "resize", Delivered: story.DeliveredOnce, Acked: true}}},
	"conflict aside": {
		Scanned: true, Shard: 3, Shards: 4,
		Entry:    aside("_conflict/17", kvstate.ReasonConflict, 17),
		Namesake: &kvstate.Record{ID: "img-7", Kind: "resize", State: kvstate.Completed},
		Notes:    []kvstate.Note{{At: after(2), What: kvstate.NoteParked, Worker: "worker-2", Entry: "_conflict/17", Seq: 17, SubmittedAt: after(1)}},
	},
	"conflict aside of nobody": {Scanned: true, Entry: aside("_conflict/17", kvstate.ReasonConflict, 17)},
	"malformed aside":          {Scanned: true, Entry: aside("_malformed/17", kvstate.ReasonMalformed, 17), Copies: []story.Copy{{Seq: 17, At: after(1), Queue: "default", Kind: "resize", Acked: true, Settled: true}}},
	"follow-up aside":          {Scanned: true, Entry: aside("_conflict/a=20b/2", kvstate.ReasonConflict), Namesake: &kvstate.Record{ID: "img-7", Kind: "resize", State: kvstate.Waiting}},
	"decision aside":           {Scanned: true, Shard: 0, Shards: 4, Entry: aside("_conflict/_journal/trip=2Flisbon/3/1", kvstate.ReasonConflict)},
	"discarded aside": {Scanned: true, Entry: func() kvstate.Entry {
		e := aside("_conflict/17", kvstate.ReasonConflict, 17)
		e.Record.Trail = append(e.Record.Trail, step(9, kvstate.Discarded, "ann", 0, "a test"))
		e.Record.State, e.Record.Owner, e.Record.StoredAt = kvstate.Discarded, "ann", after(9)
		return e
	}()},
	"copy filed in a shard": {
		Scanned: true, Shard: 3, Shards: 4,
		Entry: entry(6, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Trail: trail(step(1, kvstate.Completed, "worker-1", 0, ""))}),
		Filed: []kvstate.Entry{aside("_conflict/17", kvstate.ReasonConflict, 17)},
	},
	"hostile": {
		Copies: []story.Copy{{Seq: 7, At: zero, Queue: "default", Kind: "re\x1bsize", Delivered: story.DeliveredOnce}},
		Entry: entry(6, kvstate.Record{Attempt: 1, Seqs: []uint64{7}, Reason: "\x1b[2J", Error: "line\r\nbreak \x1b]0;title\a \u202egnp.exe\xff", Trail: trail(
			step(1, kvstate.Claimed, "worker two: finished it", 5, ""), step(2, kvstate.Parked, "w\u0085orker\x7f", 5, "x\x00"))}),
		Notes: []kvstate.Note{
			{At: after(1), What: "\x1b[31m", Worker: "\x1b[1A", Text: "a\nb"},
			{At: after(1.5), What: kvstate.NoteAbsorbed, Worker: "w", Seq: 8, Entry: "_absorbed/8\x1b[2J"},
		},
		Extra: []story.Event{{At: after(3), Source: "outbox", What: "row", Text: "a row\x1b[2J of\n it \u202e"}},
	},
}

func TestTell(t *testing.T) {
	t.Parallel()
	for name, e := range tales {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e.ID, e.Asked, e.Terms = "img-7", after(60), terms
			if kvstate.Aside(e.Entry.Key) {
				e.ID = desk.Key(e.Shard, e.Shards, e.Entry.Key)
			}
			if name == "hostile" {
				e.ID = "a\x1b[2J b"
			}
			told := story.Tell(e)
			text := told.Text(time.UTC)
			path := filepath.Join("testdata", strings.ReplaceAll(name, " ", "_")+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if text != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", text, want)
			}
			for i, r := range text {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("the text holds %q at byte %d", r, i)
				}
			}
			body, err := json.Marshal(told)
			if err != nil {
				t.Fatal(err)
			}
			var again map[string]any
			if err := json.Unmarshal(body, &again); err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"id", "state", "events", "verdict"} {
				if again[key] == nil {
					t.Errorf("the JSON lacks %q: %s", key, body)
				}
			}
		})
	}
}

// Evidence is only read: the same gives the same story, again and again.
func TestTell_IsPure(t *testing.T) {
	t.Parallel()
	e := tales["takeover"]
	before, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	first, second := story.Tell(e), story.Tell(e)
	if a, b := first.Text(time.UTC), second.Text(time.UTC); a != b {
		t.Errorf("two stories of the same evidence:\n%s\n%s", a, b)
	}
	after, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Error("telling changed the evidence")
	}
}
