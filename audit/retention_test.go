package audit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// brief is a retention that a test can wait for. No lease runs out meanwhile.
func brief(d time.Duration) tallyman.Settings {
	return tallyman.Settings{Retention: d, BackoffMin: 10 * time.Millisecond, BackoffMax: 20 * time.Millisecond, MaxAttempts: 2}
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pooltest.Await(t, ctx, what, ok)
}

// revisions returns all that the bucket has under a key or pattern.
func (s *scene) revisions(t *testing.T, key command.Token) []kvstate.Entry {
	t.Helper()
	all, err := s.Records().Revisions(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (s *scene) expired(t *testing.T, keys ...command.Token) {
	t.Helper()
	for _, key := range keys {
		eventually(t, string(key)+" to expire", func() bool {
			e, err := s.Records().Read(t.Context(), key)
			return err == nil && e.Raw == nil
		})
	}
}

func TestRetention_SealedBooksStayBalanced(t *testing.T) {
	t.Parallel()
	s := newSceneWith(t, brief(15*time.Second)) // time enough to seal in
	s.submit(t, 1, 5)
	s.work(t, 5)
	if got := s.audit(t, audit.Options{Seal: true}); !got.Balanced || got.SealedThrough != 5 {
		t.Fatalf("before: got %+v, want sealed through 5", got)
	}
	s.expired(t, "c-1", "c-3", "c-4", "c-5")
	s.submit(t, 6, 6)
	got := s.audit(t, audit.Options{Seal: true})
	if !got.Balanced || got.Completed != 0 || got.Parked != 1 || got.Pending != 1 || got.FirstSeq != 6 {
		t.Errorf("after: got %+v, want balanced, with the parked one left and one pending", got)
	}
	against := func(yield func(audit.Accepted, error) bool) { yield(audit.Accepted{ID: "c-1", Sequence: 1}, nil) }
	r := s.audit(t, audit.Options{Against: against})
	if len(r.MissingIDs) != 1 || !strings.Contains(r.MissingIDs[0].Cause, "the books are sealed through sequence 5: its receipt has expired") {
		t.Errorf("against a list that is too old: got %+v, want it said that the receipt has expired", r.MissingIDs)
	}
}

func TestRetention_UnsealedBooksSayWhatExpired(t *testing.T) {
	t.Parallel()
	s := newSceneWith(t, brief(time.Second))
	s.submit(t, 1, 5)
	s.workTo(t, "c-2") // receipts may be gone before anyone has read them
	s.expired(t, "c-1", "c-3", "c-4", "c-5")
	check := func(when string) {
		t.Helper()
		r := s.audit(t, audit.Options{Seal: true})
		if want := []uint64{1, 3, 4, 5}; r.Balanced || !slices.Equal(r.Missing, want) || r.SealedThrough != 0 {
			t.Errorf("%s: got %+v, want sequences %v missing and nothing sealed", when, r, want)
		}
		for _, seq := range []uint64{1, 3, 4, 5} {
			finding(t, r, "missing", seq, "", "likely its receipt expired before the books were sealed: receipts are kept for 1s", "seal within the retention: tallyman audit --every 1m --seal",
				`nats kv put main _audit '{"sealed_through":SEQUENCE}'`)
		}
	}
	check("at once")
	s.submit(t, 6, 6)
	check("and with a younger command behind them")
	s.setSeal(t, `{"sealed_through":5}`)
	if got := s.audit(t, audit.Options{}); !got.Balanced || got.Pending != 1 {
		t.Errorf("begun behind them: got %+v, want balanced", got)
	}
	// What is younger than the oldest receipt, or than a command before it, has not expired.
	s.submit(t, 7, 7)
	if err := s.commands(t).DeleteMsg(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if f := finding(t, s.audit(t, audit.Options{}), "missing", 7, ""); strings.Contains(f.Cause, "expired") {
		t.Errorf("a young command that was deleted is told as %q", f.Cause)
	}
}

// workTo runs a worker until the stream is empty and a parked command is on record.
func (s *scene) workTo(t *testing.T, parked string) {
	t.Helper()
	stop := s.worker(t, echo())
	eventually(t, "an empty stream", func() bool {
		st, err := s.Commands().State(t.Context())
		return err == nil && st.Messages == 0
	})
	if _, err := s.Find(t.Context(), parked); err != nil {
		t.Error(err)
	}
	stop()
}

func (s *scene) worker(t *testing.T, mux *tallyman.Mux) (stop func()) {
	t.Helper()
	w, err := s.NewWorker(tallyman.WorkerConfig{Mux: mux})
	if err != nil {
		t.Fatal(err)
	}
	life, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(life) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// When a receipt expires nothing older comes to light, whatever revisions lay
// below it, and the id runs as if it were new. What does not expire stays.
func TestRetention_NothingOlderComesToLight(t *testing.T) {
	t.Parallel()
	s := newSceneWith(t, brief(8*time.Second)) // time enough to see each receipt
	// The server's own window on ids, of two minutes, outlasts this retention.
	cfg := s.commands(t).CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond
	if _, err := s.js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	var runs, broken atomic.Int32
	broken.Store(1)
	mux := &tallyman.Mux{}
	err := mux.Route(tallyman.Route{Kind: "steps", Eager: true, Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		runs.Add(1)
		for n := range uint64(3) {
			if err := c.Progress(ctx, c.Offset()+n+1, []byte("half")); err != nil {
				return tallyman.Result{}, err
			}
		}
		return tallyman.Result{Body: []byte("done")}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("fails", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		if broken.Load() == 1 {
			return tallyman.Result{}, errors.Join(c.Progress(ctx, c.Offset()+1, []byte("half")), errors.New("broken"))
		}
		return tallyman.Result{}, nil
	}))
	mux.Handle("never", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errors.New("never"))
	}))
	stop := s.worker(t, mux)
	defer stop()
	send := func(kind, id string) {
		t.Helper()
		if _, err := s.Submit(t.Context(), tallyman.Command{ID: id, Kind: kind}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(id string, state tallyman.State) {
		t.Helper()
		eventually(t, id+" to be "+string(state), func() bool {
			r, err := s.Find(t.Context(), id)
			return err == nil && r.State == state
		})
	}
	for _, id := range []string{"requeued", "resolved", "discarded"} {
		send("fails", id)
		await(id, tallyman.Parked)
	}
	send("never", "parked")
	await("parked", tallyman.Parked)
	send("steps", "stepped")
	await("stepped", tallyman.Completed)
	if err := s.Records().PutWait(t.Context(), "damaged", []byte("no record"), 0); err != nil {
		t.Fatal(err)
	}
	send("never", "other") // so that the damaged one has no head start
	raw := nats.NewMsg(s.Commands().Subject("default", "never", "damaged"))
	if _, err := s.js.PublishMsg(t.Context(), raw); err != nil {
		t.Fatal(err)
	}
	await("damaged", tallyman.Parked)

	broken.Store(0)
	act, d := desk.Act{By: "ann", Why: "a test"}, desk.New(s.Commands(), s.Records())
	if _, err := d.Requeue(t.Context(), act, "requeued"); err != nil {
		t.Fatal(err)
	}
	await("requeued", tallyman.Completed)
	if _, err := d.Resolve(t.Context(), act, "resolved", desk.Result{Body: []byte("by hand")}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Discard(t.Context(), act, "discarded"); err != nil {
		t.Fatal(err)
	}
	// Another copy of what is parked is absorbed; that entry and its note expire.
	copied, err := s.js.PublishMsg(t.Context(), nats.NewMsg(s.Commands().Subject("default", "never", "parked")))
	if err != nil {
		t.Fatal(err)
	}
	absorbed := kvstate.AbsorbedKey(copied.Sequence)
	eventually(t, "the copy to be absorbed", func() bool {
		e, err := s.Records().Read(t.Context(), absorbed)
		return err == nil && e.Raw != nil
	})

	gone := []command.Token{"stepped", "requeued", "resolved", "discarded", absorbed}
	s.expired(t, gone...)
	eventually(t, "the notes to expire", func() bool { return len(s.revisions(t, kvstate.NoteKey("parked", "*"))) == 0 })
	for _, key := range gone {
		if left := s.revisions(t, key); len(left) != 0 {
			t.Errorf("%s: %d older revisions came to light, the first is %+v", key, len(left), left[0])
		}
	}
	var kept []string
	if err := s.Records().Scan(t.Context(), func(e kvstate.Entry) error {
		if k := string(e.Key); !strings.HasPrefix(k, "_probe") && !strings.HasPrefix(k, "_note") {
			kept = append(kept, strings.TrimRight(k, "0123456789"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(kept)
	if want := []string{"_corrupt/damaged/", "_pool", "damaged", "other", "parked"}; !slices.Equal(kept, want) {
		t.Errorf("left are %v, want %v", kept, want)
	}

	before := runs.Load()
	sub, err := s.Submit(t.Context(), tallyman.Command{ID: "stepped", Kind: "steps", Payload: []byte("another payload, too")})
	if err != nil || sub.Absorbed {
		t.Fatalf("an expired id: got %+v, %v; want it accepted as new", sub, err)
	}
	await("stepped", tallyman.Completed)
	if got, err := s.Find(t.Context(), "stepped"); err != nil || got.Attempt != 1 || got.Offset != 6 || runs.Load() != before+1 {
		t.Errorf("got %+v, %v after %d runs; want one more run, from offset 0 to 6", got, err, runs.Load()-before)
	}
}
