package desk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// cancelled checks the outcome of a cancelled command.
func (r *rig) cancelled(t *testing.T, id string, seqs ...uint64) {
	t.Helper()
	receipt, err := r.Wait(r.ctx, id)
	if !errors.Is(err, tallyman.ErrCancelled) || receipt.State != tallyman.Cancelled || receipt.Owner != "ann" {
		t.Errorf("%s: got %+v, %v, want it cancelled by ann", id, receipt, err)
	}
	if got, want := fmt.Sprint(r.record(t, id).Seqs), fmt.Sprint(seqs); got != want {
		t.Errorf("%s accounts for %v, want %v", id, got, want)
	}
	r.emptied(t)
	r.balanced(t)
}

func TestCancel_Pending(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	cmd := tallyman.Command{ID: "a", Kind: "echo"}
	r.submit(t, cmd)
	if out, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil || out.Already || out.Left != nil {
		t.Fatalf("got %+v, %v", out, err)
	}
	r.cancelled(t, "a", 1)
	if out, err := r.desk.Cancel(r.ctx, bob, "a"); err != nil || !out.Already {
		t.Errorf("a second time: got %+v, %v, want already", out, err)
	}
	if s, err := r.Submit(r.ctx, cmd); err != nil || !s.Absorbed {
		t.Errorf("submitted again: got %+v, %v, want it absorbed", s, err)
	}
	if _, err := r.desk.Discard(r.ctx, bob, "a"); !errors.Is(err, ErrRefused) {
		t.Errorf("discard: got %v, want it refused", err)
	}
	if _, err := r.desk.Cancel(r.ctx, ann, "nobody"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown one: got %v, want %v", err, ErrNotFound)
	}
}

func TestCancel_Waiting(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.MaxAttempts = 5
	r := newRig(t, settings)
	s := newSeen(true)
	r.work(t, s)
	r.submit(t, tallyman.Command{ID: "a", Kind: "frail"})
	r.await(t, "the first attempt to fail", func() bool {
		rec, err := r.Find(r.ctx, "a")
		return err == nil && rec.State == kvstate.Waiting
	})
	if out, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil || out.Left != nil {
		t.Fatalf("got %+v, %v", out, err)
	}
	r.cancelled(t, "a", 1)
}

// TestCancel_Running has the handler hear of it, and its result refused.
func TestCancel_Running(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Lease = 5 * time.Second // a heartbeat tells the handler
	r := newRig(t, settings)
	s := newSeen(false)
	r.work(t, s)
	r.submit(t, tallyman.Command{ID: "a", Kind: "long"})
	<-s.running
	if out, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil || out.Left != nil {
		t.Fatalf("got %+v, %v", out, err)
	}
	select {
	case cause := <-s.ended:
		if !errors.Is(cause, tallyman.ErrCancelled) {
			t.Errorf("the handler's context ended for %v, want %v", cause, tallyman.ErrCancelled)
		}
	case <-r.ctx.Done():
		t.Fatal("the handler's context has not ended")
	}
	// It returned a result all the same. The worker goes on with others.
	r.submit(t, tallyman.Command{ID: "b", Kind: "echo"})
	if _, err := r.Wait(r.ctx, "b"); err != nil {
		t.Error(err)
	}
	r.cancelled(t, "a", 1)
}

func TestCancel_Requeued(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "a", Kind: "echo"}, kvstate.ReasonExhausted)
	if _, err := r.desk.Requeue(r.ctx, bob, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil {
		t.Fatal(err)
	}
	r.cancelled(t, "a", 1, 2)
}

func TestCancel_Refused(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.placed(t, tallyman.Command{ID: "parked", Kind: "echo"}, kvstate.ReasonExhausted)
	r.submit(t, tallyman.Command{ID: "prepared", Kind: "echo"})
	rec, err := (&kvstate.Record{ID: "prepared", Kind: "echo", Seqs: []uint64{2}}).Advance(kvstate.Prepared, "worker-1", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Records().WriteWait(r.ctx, "prepared", rec); err != nil {
		t.Fatal(err)
	}
	r.submit(t, tallyman.Command{ID: "unclear", Kind: "echo"})
	rec, err = (&kvstate.Record{ID: "unclear", Kind: "echo", Seqs: []uint64{3}, Intent: []byte("pay")}).Advance(kvstate.Waiting, "worker-1", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Records().WriteWait(r.ctx, "unclear", rec); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    string
		texts []string
	}{
		{"parked", []string{`"parked"`, `"cancelled"`, "discard"}},
		{"unclear", []string{`"waiting"`, `"cancelled"`, "by worker-1", "announced an effect"}},
		{"prepared", []string{`"prepared"`, `"cancelled"`, "by worker-1", "may be happening", "uncertain"}},
	} {
		_, err := r.desk.Cancel(r.ctx, ann, c.id)
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: got %v, want it refused", c.id, err)
			continue
		}
		for _, text := range c.texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q is missing in: %v", c.id, text, err)
			}
		}
	}
}

// stuck is a command stream that nothing can be removed from.
type stuck struct {
	commands
	err error
}

func (s stuck) Remove(context.Context, uint64) error { return s.err }

// TestCancel_NotTakenOut lacks the right to delete, or crashes before it.
func TestCancel_NotTakenOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	r.submit(t, tallyman.Command{ID: "a", Kind: "echo"})
	r.submit(t, tallyman.Command{ID: "b", Kind: "echo"})
	without := New(r.Commands(), r.Records())
	without.commands = stuck{r.Commands(), stream.ErrDenied}
	for _, id := range []string{"a", "b"} {
		if out, err := without.Cancel(r.ctx, ann, id); err != nil || !errors.Is(out.Left, stream.ErrDenied) {
			t.Fatalf("got %+v, %v, want it done but left", out, err)
		}
	}
	r.balanced(t)
	if out, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil || !out.Already || out.Left != nil {
		t.Errorf("by somebody who may: got %+v, %v", out, err)
	}
	if _, err := r.Commands().Get(r.ctx, 1); !errors.Is(err, stream.ErrNotFound) {
		t.Errorf("got %v, want it taken out by the second try", err)
	}
	r.work(t, newSeen(false))
	r.cancelled(t, "b", 2) // a worker took it out
}

// TestCancel_WhileWorkersRun cancels commands that workers complete meanwhile:
// each ends either way, and never both.
func TestCancel_WhileWorkersRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	const n = 200
	r.work(t, newSeen(false))
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for i := range n {
		id := fmt.Sprintf("c-%d", i)
		r.submit(t, tallyman.Command{ID: id, Kind: "echo"})
		for range 2 {
			wg.Go(func() {
				out, err := r.desk.Cancel(r.ctx, ann, id)
				switch {
				case err == nil && !out.Already:
					mu.Lock()
					won[id]++
					mu.Unlock()
				case err != nil && !errors.Is(err, ErrRefused):
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	r.emptied(t)
	for i := range n {
		id := fmt.Sprintf("c-%d", i)
		state := r.record(t, id).State
		if got, want := won[id], map[kvstate.State]int{kvstate.Cancelled: 1}[state]; got != want {
			t.Errorf("%s is %s and was cancelled %d times", id, state, got)
		}
	}
	if got := r.balanced(t); got.Completed+got.Cancelled != n {
		t.Errorf("got %+v, want %d ends", got, n)
	}
}

// TestCancel_LeavesAnotherCommand has another command under the same id wait in
// the stream: it is not what was cancelled, and is to be reported as a conflict.
func TestCancel_LeavesAnotherCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk)
	seq := r.submit(t, tallyman.Command{ID: "a", Kind: "echo"})
	rec, err := (&kvstate.Record{ID: "a", Kind: "echo", Digest: dedupe.Digest("echo", nil), Seqs: []uint64{seq}}).Advance(kvstate.Waiting, "worker-1", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Records().WriteWait(r.ctx, "a", rec); err != nil {
		t.Fatal(err)
	}
	other, err := pooltest.JetStream(t, r.nc).Publish(r.ctx, "main.commands.default.other.a", nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := r.desk.Cancel(r.ctx, ann, "a"); err != nil || out.Left != nil {
		t.Fatalf("got %+v, %v", out, err)
	}
	if got := r.record(t, "a"); got.State != kvstate.Cancelled || got.Accounts(other.Sequence) {
		t.Fatalf("got %+v, want it cancelled, and nothing said of the other", got)
	}
	r.work(t, newSeen(false))
	r.await(t, "the conflict to be parked", func() bool {
		e, err := r.Records().Read(r.ctx, kvstate.ConflictKey(other.Sequence))
		return err == nil && e.Record != nil && e.Record.Reason == kvstate.ReasonConflict
	})
}
