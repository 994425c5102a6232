package desk

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.parked(t, "a", "x")
	result := Result{Body: []byte("paid by hand"), ContentType: "text/plain"}
	if out, err := r.desk.Resolve(r.ctx, ann, "a", result); err != nil || out.Already {
		t.Fatalf("got %+v, %v", out, err)
	}
	receipt, err := r.Wait(r.ctx, "a")
	if err != nil || receipt.State != tallyman.Completed || string(receipt.Result) != "paid by hand" || receipt.ContentType != "text/plain" || receipt.ResolvedBy != "ann" {
		t.Errorf("got %+v, %v", receipt, err)
	}
	rec := r.record(t, "a")
	if last := rec.Trail[len(rec.Trail)-1]; last.Owner != "ann" || last.Note != ann.Why || rec.Command != nil || rec.Reason != "" {
		t.Errorf("got %+v", rec)
	}
	r.balanced(t)
	if out, err := r.desk.Resolve(r.ctx, bob, "a", result); err != nil || !out.Already {
		t.Errorf("the same again: got %+v, %v, want already", out, err)
	}
	_, err = r.desk.Resolve(r.ctx, bob, "a", Result{Body: []byte("not paid")})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "by ann at") || !strings.Contains(err.Error(), "never changes") {
		t.Errorf("another result: got %v, want it refused", err)
	}
	if s, err := r.Submit(r.ctx, tallyman.Command{ID: "a", Kind: "frail", Payload: []byte("x")}); err != nil || !s.Absorbed {
		t.Errorf("submitted again: got %+v, %v, want it absorbed", s, err)
	}
}

func TestResolve_Refused(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "big", Kind: "echo"}, kvstate.ReasonUncertain)
	r.submit(t, tallyman.Command{ID: "pending", Kind: "echo"})
	_, err := r.desk.Resolve(r.ctx, ann, "big", Result{Body: bytes.Repeat([]byte("x"), 2<<20)})
	if !errors.Is(err, kvstate.ErrTooLarge) || !strings.Contains(err.Error(), "2097152 bytes") || !strings.Contains(err.Error(), "reference") {
		t.Errorf("a huge result: got %v", err)
	}
	if got := r.record(t, "big").State; got != kvstate.Parked {
		t.Errorf("got state %s, want still parked", got)
	}
	if _, err := r.desk.Resolve(r.ctx, ann, "pending", Result{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `from "none" to "completed"`) {
		t.Errorf("a pending one: got %v", err)
	}
	if _, err := r.desk.Resolve(r.ctx, ann, "nobody", Result{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: got %v", err)
	}
}

// TestResolve_TwoAtOnce has two people state different results.
func TestResolve_TwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "a", Kind: "echo"}, kvstate.ReasonUncertain)
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, act := range []Act{ann, bob} {
		wg.Go(func() { _, errs[i] = r.desk.Resolve(r.ctx, act, "a", Result{Body: []byte(act.By)}) })
	}
	wg.Wait()
	receipt, err := r.Wait(r.ctx, "a")
	if err != nil || receipt.ResolvedBy != string(receipt.Result) {
		t.Fatalf("got %+v, %v", receipt, err)
	}
	for i, act := range []Act{ann, bob} {
		if won := act.By == receipt.ResolvedBy; won != (errs[i] == nil) || !won && !errors.Is(errs[i], ErrRefused) {
			t.Errorf("%s: got %v, and the receipt is by %s", act.By, errs[i], receipt.ResolvedBy)
		}
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.parked(t, "a", "x")
	if out, err := r.desk.Discard(r.ctx, ann, "a"); err != nil || out.Already {
		t.Fatalf("got %+v, %v", out, err)
	}
	if receipt, err := r.Wait(r.ctx, "a"); !errors.Is(err, tallyman.ErrCancelled) || receipt.State != tallyman.Discarded {
		t.Errorf("got %+v, %v, want it discarded", receipt, err)
	}
	if out, err := r.desk.Discard(r.ctx, bob, "a"); err != nil || !out.Already {
		t.Errorf("a second time: got %+v, %v, want already", out, err)
	}
	if _, err := r.desk.Requeue(r.ctx, bob, "a"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `from "discarded" to "requeued" (by ann at`) {
		t.Errorf("requeue: got %v, want it refused", err)
	}
	r.balanced(t)
}

// TestDiscard_Aside gives up what was parked under its sequence.
func TestDiscard_Aside(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	if _, err := r.nc.Request("main.commands.default.echo.=zz", []byte("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	stop := r.work(t, newSeen(false))
	r.emptied(t)
	stop()
	key := kvstate.MalformedKey(1)
	if _, err := r.desk.Resolve(r.ctx, ann, string(key), Result{}); !errors.Is(err, ErrRefused) {
		t.Errorf("resolve: got %v, want it refused", err)
	}
	if _, err := r.desk.Cancel(r.ctx, ann, string(key)); !errors.Is(err, ErrRefused) {
		t.Errorf("cancel: got %v, want it refused", err)
	}
	counts, err := r.desk.RequeueMany(r.ctx, ann, Bulk{})
	if err != nil || counts != (Counts{Matched: 1, Refused: 1}) {
		t.Errorf("requeue all: got %+v, %v", counts, err)
	}
	var items []Item
	counts, err = r.desk.DiscardMany(r.ctx, ann, Bulk{DryRun: true, Each: func(i Item, _ Counts) { items = append(items, i) }})
	if err != nil || counts != (Counts{Matched: 1}) || len(items) != 1 || items[0].Key != key {
		t.Errorf("a dry run: got %+v, %+v, %v", counts, items, err)
	}
	for i := range 2 {
		out, err := r.desk.Discard(r.ctx, ann, string(key))
		if err != nil || out.Already != (i == 1) {
			t.Errorf("discard %d: got %+v, %v", i, out, err)
		}
	}
	if got := r.balanced(t); got.Discarded != 1 || got.Parked != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestDiscardMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	for _, id := range []string{"a", "b", "-c"} {
		r.placed(t, tallyman.Command{ID: id, Kind: "echo"}, kvstate.ReasonExhausted)
	}
	r.placed(t, tallyman.Command{ID: "d", Kind: "other"}, kvstate.ReasonRejected)
	key := r.placed(t, tallyman.Command{ID: "e", Kind: "echo", Payload: []byte("large")}, kvstate.ReasonUncertain, func(rec *kvstate.Record) {
		rec.Command.Payload = nil
		stored := make(chan error, 1)
		if err := r.Records().Put(kvstate.PayloadKey("e"), []byte("large"), false, func(_ uint64, err error) { stored <- err }); err != nil {
			t.Error(err)
		}
		if err := <-stored; err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		bulk Bulk
		want Counts
	}{
		{Bulk{Filter: Filter{Kind: "nothing"}}, Counts{}},
		{Bulk{Filter: Filter{OlderThan: time.Hour}}, Counts{}},
		{Bulk{Filter: Filter{NewerThan: time.Hour}, DryRun: true}, Counts{Matched: 5}},
		{Bulk{IDs: []string{"a", "-c", "nobody", ""}}, Counts{Matched: 4, Done: 2, Failed: 2}},
		{Bulk{IDs: []string{"a", "-c"}}, Counts{Matched: 2, Already: 2}},
		{Bulk{IDs: []string{"a", "b"}, DryRun: true}, Counts{Matched: 2, Already: 1}},
		{Bulk{Filter: Filter{Reason: kvstate.ReasonRejected}}, Counts{Matched: 1, Done: 1}},
		{Bulk{}, Counts{Matched: 2, Done: 2}},
		{Bulk{}, Counts{}},
	} {
		if got, err := r.desk.DiscardMany(r.ctx, ann, c.bulk); err != nil || got != c.want {
			t.Errorf("%+v: got %+v, %v, want %+v", c.bulk, got, err, c.want)
		}
	}
	if e, err := r.Records().Read(r.ctx, kvstate.PayloadKey(key)); err != nil || e.Raw != nil {
		t.Errorf("the payload that lay beside is still there, or %v", err)
	}
	if got := r.balanced(t); got.Discarded != 5 {
		t.Errorf("got %+v", got)
	}
}

// TestReceiptsExpire has final records of all acts run out, and nothing older come to light.
func TestReceiptsExpire(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Retention = 3 * time.Second
	r := newRig(t, settings)
	r.placed(t, tallyman.Command{ID: "resolved", Kind: "echo"}, kvstate.ReasonUncertain)
	r.placed(t, tallyman.Command{ID: "discarded", Kind: "echo"}, kvstate.ReasonUncertain)
	r.submit(t, tallyman.Command{ID: "cancelled", Kind: "echo"})
	if _, err := r.desk.Resolve(r.ctx, ann, "resolved", Result{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.desk.Discard(r.ctx, ann, "discarded"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.desk.Cancel(r.ctx, ann, "cancelled"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"resolved", "discarded", "cancelled"} {
		r.await(t, id+" to expire", func() bool {
			_, err := r.Find(r.ctx, id)
			return errors.Is(err, tallyman.ErrNotFound)
		})
		if _, err := r.desk.Requeue(r.ctx, ann, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("requeue of %s: got %v, want %v", id, err, ErrNotFound)
		}
		if _, err := r.desk.Cancel(r.ctx, ann, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("cancel of %s: got %v, want %v", id, err, ErrNotFound)
		}
	}
}

// TestStates tries every act on a record in every state.
func TestStates(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	for _, s := range kvstate.States() {
		allowed := map[string]bool{}
		for _, verb := range Next(&kvstate.Record{State: s}, false) {
			allowed[verb] = true
		}
		// Done again, an act of its own kind changes nothing.
		again := map[kvstate.State]string{kvstate.Requeued: "requeue", kvstate.Cancelled: "cancel", kvstate.Discarded: "discard"}
		for verb, do := range map[string]func(id string) (Outcome, error){
			"requeue": func(id string) (Outcome, error) { return r.desk.Requeue(r.ctx, ann, id) },
			"resolve": func(id string) (Outcome, error) { return r.desk.Resolve(r.ctx, ann, id, Result{}) },
			"discard": func(id string) (Outcome, error) { return r.desk.Discard(r.ctx, ann, id) },
			"cancel":  func(id string) (Outcome, error) { return r.desk.Cancel(r.ctx, ann, id) },
		} {
			id := verb + "-" + string(s)
			r.placed(t, tallyman.Command{ID: id, Kind: "echo"}, kvstate.ReasonExhausted, func(rec *kvstate.Record) { rec.State = s })
			before := r.record(t, id).Revision
			_, err := do(id)
			switch changed := r.record(t, id).Revision != before; {
			case allowed[verb]:
				if err != nil || !changed {
					t.Errorf("%s of %s: got %v, changed: %v, want it done", verb, s, err, changed)
				}
			case again[s] == verb:
				if err != nil || changed {
					t.Errorf("%s of %s: got %v, changed: %v, want nothing done", verb, s, err, changed)
				}
			case !errors.Is(err, ErrRefused) || changed || !strings.Contains(err.Error(), `"`+string(s)+`"`):
				t.Errorf("%s of %s: got %v, changed: %v, want it refused by name", verb, s, err, changed)
			}
		}
	}
}
