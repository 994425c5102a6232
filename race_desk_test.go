package tallyman

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// A worker that was about to absorb a second copy of a parked command acked it
// after an operator had sent the command back, for which that copy was all that
// lay in the stream.
func TestWorker_AbsorbsNoCopyThatARequeueCountsOn(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	for _, tt := range []struct {
		late memory.Op
		nth  int64 // of the operations of that kind, once the copy is there
		fate memory.Fate
	}{
		{memory.OpRead, 1, memory.Fate{Delay: time.Second}}, // which judges the copy
		{memory.OpRead, 1, memory.Fate{Back: time.Second}},
		{memory.OpWrite, 1, memory.Fate{Delay: time.Second}}, // which files it
		{memory.OpWrite, 1, memory.Fate{Back: time.Second}},
		{memory.OpRead, 2, memory.Fate{Delay: time.Second}}, // which looks again
		{memory.OpRead, 2, memory.Fate{Back: time.Second}},
		{memory.OpAnswer, 1, memory.Fate{Delay: time.Second}},
	} {
		t.Run(fmt.Sprintf("%s %d, late by %v, answered late by %v", tt.late, tt.nth, tt.fate.Delay, tt.fate.Back), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
				var armed atomic.Bool
				struck := make(chan struct{})
				var calls, ops atomic.Int64
				h := s.Connect("w", func(op memory.Op) memory.Fate {
					if op == tt.late && armed.Load() && ops.Add(1) == tt.nth {
						close(struck)
						return tt.fate
					}
					return memory.Fate{}
				})
				stop := workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) {
					if calls.Add(1) == 1 {
						return Result{}, Reject(errors.New("not like this"))
					}
					return Result{}, nil
				})
				sendOnDouble(t, s, "a")
				for s.Entry("a").Record == nil || len(s.Held()) > 0 {
					time.Sleep(time.Second)
				}
				armed.Store(true)
				sendOnDouble(t, s, "a")
				<-struck
				synctest.Wait() // what is late has not arrived, or is on its way back
				operator := s.Connect("desk", nil)
				if _, err := desk.New(operator.Commands(), operator.Records()).Requeue(t.Context(), desk.Act{By: "ann"}, "a"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed {
					t.Errorf("the record is %+v, and the stream holds %d commands; want the receipt of what was sent back", r, len(s.Held()))
				}
				stop()
				for _, text := range s.Broken() {
					t.Error(text)
				}
			})
		})
	}
}

// An operator took out the delivery that was parked, whose ack had got lost,
// though it had come again meanwhile and a worker ran it as what was sent back.
// The one put in its place ran beside it.
func TestDesk_RequeueTakesNothingOutThatRunsAgain(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 30 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
		var first sync.Once
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpAnswer {
				first.Do(func() { f.Lost = true })
			}
			return f
		})
		var calls, running atomic.Int64
		stop := workOnDouble(t, h, settings, func(ctx context.Context, _ *Claim) (Result, error) {
			if calls.Add(1) == 1 {
				return Result{}, Reject(errors.New("not like this"))
			}
			if running.Add(1) > 1 {
				t.Error("the handler runs twice at once")
			}
			defer running.Add(-1)
			return Result{}, pipeline.Sleep(ctx, 5*time.Minute)
		})
		sendOnDouble(t, s, "a")
		time.Sleep(settings.Lease - 100*time.Millisecond)
		operator := s.Connect("desk", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpPublish { // until the lease of the first delivery is over
				f.Delay = 300 * time.Millisecond
			}
			return f
		})
		if _, err := desk.New(operator.Commands(), operator.Records()).Requeue(t.Context(), desk.Act{By: "ann"}, "a"); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute)
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 1 || len(s.Held()) > 0 {
			t.Errorf("got %+v, want a receipt of the first attempt", r)
		}
		stop()
	})
}
