package tallyman_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestInvariant_I7_FollowUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{Queues: []string{"default", "side"}})
	parent := func(fail error, commands ...tallyman.Command) tallyman.HandlerFunc {
		return func(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if err := c.FollowUp(commands...); err != nil {
				return tallyman.Result{}, tallyman.Reject(err)
			}
			return tallyman.Result{Body: []byte("parent")}, fail
		}
	}
	child := func(id, payload string) tallyman.Command {
		return tallyman.Command{ID: id, Kind: "echo", Payload: []byte(payload)}
	}
	sideChild := child("named child", "named")
	sideChild.Queue = "side"
	var mux tallyman.Mux
	mux.Handle("echo", tallyman.HandlerFunc(echo))
	mux.Handle("bears", parent(nil, child("", "one"), sideChild, child("", "three")))
	mux.Handle("fails", parent(errBroken, child("", "never"), child("unborn", "never")))
	mux.Handle("clashes", parent(nil, child("taken", "another payload"), child("", "fine")))
	mux.Handle("repeats", parent(nil, child("taken", "first")))
	mux.Handle("wrong", parent(nil, child("", "ok"), tallyman.Command{ID: "x", Kind: "not a kind"}))
	start(t, r.Pool, tallyman.WorkerConfig{Mux: &mux, Queues: []string{"default", "side"}})
	r.submit(t, child("taken", "first"))
	if _, err := r.Wait(r.ctx, "taken"); err != nil {
		t.Fatal(err)
	}

	t.Run("named and unnamed ones are born with the receipt", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "p", Kind: "bears"})
		for id, want := range map[string]string{"p": "parent", "p/1": "one", "named child": "named", "p/3": "three"} {
			if got, err := r.Wait(r.ctx, id); err != nil || string(got.Result) != want {
				t.Errorf("%s: got %+v, %v; want %q", id, got, err, want)
			}
		}
		rec := r.record(t, "p", func(*kvstate.Record) bool { return true })
		var ids []string
		for _, c := range rec.FollowUps {
			ids = append(ids, c.ID)
		}
		if want := []string{"p/1", "named child", "p/3"}; !slices.Equal(ids, want) {
			t.Errorf("the receipt names %q, want %q", ids, want)
		}
	})
	t.Run("none is born if the parent fails", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "f", Kind: "fails"})
		if got, err := r.Wait(r.ctx, "f"); !errors.Is(err, tallyman.ErrParked) {
			t.Fatalf("got %+v, %v; want parked", got, err)
		}
		for _, id := range []string{"f/1", "unborn"} {
			if rec, err := r.Find(r.ctx, id); !errors.Is(err, tallyman.ErrNotFound) {
				t.Errorf("%s: %+v, %v; want ErrNotFound", id, rec, err)
			}
		}
	})
	t.Run("one that clashes is parked, and does not keep its siblings from being born", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "c", Kind: "clashes"})
		if got, err := r.Wait(r.ctx, "c"); err != nil || string(got.Result) != "parent" {
			t.Errorf("parent: %+v, %v", got, err)
		}
		if got, err := r.Wait(r.ctx, "c/2"); err != nil || string(got.Result) != "fine" {
			t.Errorf("sibling: %+v, %v", got, err)
		}
		rec := r.recordAt(t, kvstate.FollowUpConflictKey("c", 1), parked)
		if rec.Reason != kvstate.ReasonConflict || rec.ID != "taken" || rec.Command == nil || string(rec.Command.Payload) != "another payload" {
			t.Errorf("got %+v, want the follow-up whole, parked as a conflict", rec)
		}
		if got, err := r.Wait(r.ctx, "taken"); err != nil || string(got.Result) != "first" {
			t.Errorf("the first receipt: %+v, %v", got, err)
		}
	})
	t.Run("one that exists is absorbed", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "a", Kind: "repeats"})
		if _, err := r.Wait(r.ctx, "a"); err != nil {
			t.Fatal(err)
		}
		eventually(t, r.ctx, "the parent's ack", func() bool {
			sub := r.record(t, "a", func(*kvstate.Record) bool { return true }).Seqs[0]
			_, err := r.Commands().Get(r.ctx, sub)
			return err != nil
		})
		if e := r.entry(t, kvstate.FollowUpConflictKey("a", 1)); e.Raw != nil {
			t.Errorf("parked: %+v", e.Record)
		}
	})
	t.Run("an invalid one is the handler's to hear of, and none is added", func(t *testing.T) {
		t.Parallel()
		r.submit(t, tallyman.Command{ID: "w", Kind: "wrong"})
		got, err := r.Wait(r.ctx, "w")
		if !errors.Is(err, tallyman.ErrParked) || !strings.Contains(got.Error, "not a kind") {
			t.Errorf("got %+v, %v; want parked, naming the kind", got, err)
		}
	})
}
