package tallyman

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Each of these tests holds a line that no other test misses.

// sendBody publishes a command with a payload, as any client could.
func sendBody(t *testing.T, s *memory.Server, queue string, token command.Token, payload []byte) {
	t.Helper()
	stored := make(chan error, 1)
	err := s.Connect("stranger", nil).Commands().Send(queue, "k", token, nil, payload, func(_ stream.Accepted, err error) { stored <- err })
	if err == nil {
		err = <-stored
	}
	if err != nil {
		t.Fatal(err)
	}
}

// losing loses the nth write of a handle, on its way there.
func losing(nth int64) memory.Faults {
	var writes atomic.Int64
	return func(op memory.Op) memory.Fate {
		return memory.Fate{Lost: op == memory.OpWrite && writes.Add(1) == nth}
	}
}

// What is to be on record before an ack is tried again if it could not be written.
func TestWorker_PassesOverNoLostWrite(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 30 * time.Second, MaxAttempts: 3}.WithDefaults()
	for _, tt := range []struct {
		name   string
		nth    int64 // of the writes
		begin  func(t *testing.T, s *memory.Server)
		handle func(c *Claim) error
		kept   command.Token // what is to be there in the end
	}{
		{
			name: "of a follow-up that cannot be born", nth: 2, kept: kvstate.FollowUpConflictKey("a", 1),
			begin: func(t *testing.T, s *memory.Server) {
				t.Helper()
				sendBody(t, s, command.DefaultQueue, "child", []byte("another"))
				time.Sleep(time.Minute)
			},
			handle: func(c *Claim) error {
				if c.ID() == "child" {
					return nil
				}
				return c.FollowUp(Command{ID: "child", Kind: "k"})
			},
		},
		{
			name: "of the payload that does not fit into the parked record", nth: 1, kept: kvstate.PayloadKey("a"),
			handle: func(*Claim) error { return Reject(errors.New("never")) },
		},
		{
			name: "of the bytes of a damaged record", nth: 1, kept: kvstate.CorruptKey("a", 1),
			begin: func(t *testing.T, s *memory.Server) {
				t.Helper()
				stored := make(chan error, 1)
				if err := s.Connect("stranger", nil).Records().Put("a", []byte("no record"), false, func(_ uint64, err error) { stored <- err }); err != nil {
					t.Fatal(err)
				}
				if err := <-stored; err != nil {
					t.Fatal(err)
				}
			},
			handle: func(*Claim) error { return nil },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{Lease: settings.Lease})
				var faults memory.Faults
				var mu sync.Mutex
				h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
					mu.Lock()
					defer mu.Unlock()
					if faults != nil {
						f = faults(op)
					}
					return f
				})
				stop := workOnDouble(t, h, settings, func(_ context.Context, c *Claim) (Result, error) { return Result{}, tt.handle(c) })
				if tt.begin != nil {
					tt.begin(t, s)
				}
				mu.Lock()
				faults = losing(tt.nth)
				mu.Unlock()
				var payload []byte
				if strings.HasPrefix(string(tt.kept), "_payload/") {
					payload = make([]byte, h.Records().Limit()-100)
				}
				sendBody(t, s, command.DefaultQueue, "a", payload)
				time.Sleep(10 * time.Minute)
				stop()
				if len(s.Held()) > 0 || s.Entry(tt.kept).Raw == nil {
					t.Errorf("the stream holds %v, and under %s lies %q; want an empty stream and an entry there", s.Held(), tt.kept, s.Entry(tt.kept).Raw)
				}
				for _, text := range s.Broken() {
					t.Error(text)
				}
			})
		})
	}
}

// A claim that was confirmed after the end of its lease starts no handler.
func TestWorker_StartsNoHandlerOnALateClaim(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var first sync.Once
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpWrite {
				first.Do(func() { f.Back = settings.Lease + time.Second })
			}
			return f
		})
		sent := time.Now()
		stop := routeOnDouble(t, h, settings, Route{Kind: "k", Eager: true, Handler: HandlerFunc(func(_ context.Context, c *Claim) (Result, error) {
			if c.Attempt() == 1 {
				t.Errorf("the handler of the first attempt starts after %v", time.Since(sent))
			}
			return Result{}, nil
		})})
		sendOnDouble(t, s, "a")
		time.Sleep(time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 2 {
			t.Errorf("got %+v, want the receipt of the second attempt", r)
		}
	})
}

// While it cannot be known whether the first copy is still in the stream, the
// second one does not run in its place.
func TestWorker_RivalDoesNotRunOnAnUnansweredLook(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 30 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease, Queues: []string{command.DefaultQueue, "side"}})
		var armed atomic.Bool
		var reads atomic.Int64
		h := s.Connect("w", func(op memory.Op) memory.Fate {
			// The first read is that of the record, from the leader.
			return memory.Fate{Lost: op == memory.OpRead && armed.Load() && reads.Add(1) == 2}
		})
		var calls atomic.Int64
		stop := routeOnDouble(t, h, settings, Route{Kind: "k", Eager: true, Handler: HandlerFunc(func(ctx context.Context, _ *Claim) (Result, error) {
			calls.Add(1)
			return Result{}, pipeline.Sleep(ctx, 5*time.Minute)
		})}, command.DefaultQueue, "side")
		sendOnDouble(t, s, "a")
		time.Sleep(time.Second)
		armed.Store(true)
		sendBody(t, s, "side", "a", nil)
		time.Sleep(10 * time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 1 || calls.Load() != 1 || len(s.Held()) > 0 {
			t.Errorf("got %+v after %d calls, want the receipt of the first attempt alone", r, calls.Load())
		}
		if reads.Load() < 2 {
			t.Error("nobody looked for the first copy")
		}
	})
}

// A replica that lags showed a command as parked that had been sent back, and
// whose delivery was all that lay in the stream.
func TestWorker_AcksNothingAsParkedOnAnOldAnswer(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var first sync.Once
		var lags atomic.Bool
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			switch op {
			case memory.OpAnswer:
				first.Do(func() { f.Lost = true })
			case memory.OpMany:
				if lags.Load() {
					f.Behind = 1
				}
			}
			return f
		})
		calls := 0
		stop := workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) {
			if calls++; calls == 1 {
				return Result{}, Reject(errors.New("not like this"))
			}
			return Result{}, nil
		})
		sendOnDouble(t, s, "a")
		time.Sleep(time.Second)
		// As by somebody who was cut off before the command was published anew.
		back, err := s.Entry("a").Record.Advance(kvstate.Requeued, "ann", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		back.Attempt = 0
		if _, err := s.Connect("desk", nil).Records().WriteWait(t.Context(), "a", back); err != nil {
			t.Fatal(err)
		}
		lags.Store(true)
		time.Sleep(time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed {
			t.Errorf("got %+v, want the receipt of what was sent back", r)
		}
	})
}

// Whoever holds a command keeps it though a replica that lags still shows the owner before.
func TestWorker_KeepsItsLeaseOnAnOldAnswer(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var lags atomic.Bool
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpMany && lags.Load() {
				f.Behind = 1
			}
			return f
		})
		before, err := (&kvstate.Record{ID: "a", Kind: "k", Queue: command.DefaultQueue}).Advance(kvstate.Claimed, "one that died", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		env, err := dedupe.Identify(Command{ID: "a", Kind: "k", Queue: command.DefaultQueue})
		if err != nil {
			t.Fatal(err)
		}
		before.Digest, before.Attempt, before.Seqs = env.Digest, 1, []uint64{1}
		if _, err := s.Connect("one that died", nil).Records().WriteWait(t.Context(), "a", before); err != nil {
			t.Fatal(err)
		}
		stop := workOnDouble(t, h, settings, func(ctx context.Context, _ *Claim) (Result, error) {
			lags.Store(true)
			return Result{}, pipeline.Sleep(ctx, 5*settings.Lease)
		})
		sendOnDouble(t, s, "a")
		time.Sleep(2 * time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 2 {
			t.Errorf("got %+v, want the receipt of the second attempt", r)
		}
	})
}

// An attempt goes on whose record was deleted by hand, and writes it anew.
func TestWorker_RecordDeletedWhileItRuns(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 30 * time.Second}.WithDefaults()
	for name, again := range map[string]bool{"before it saves again": true, "before its receipt": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{Lease: settings.Lease})
				stop := workOnDouble(t, s.Connect("w", nil), settings, func(ctx context.Context, c *Claim) (Result, error) {
					if err := c.Progress(ctx, c.Offset()+1, nil); err != nil {
						return Result{}, err
					}
					s.Delete("a", true)
					if !again {
						return Result{}, nil
					}
					return Result{}, c.Progress(ctx, c.Offset()+1, nil)
				})
				sendOnDouble(t, s, "a")
				time.Sleep(5 * time.Minute)
				stop()
				if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 1 || len(s.Held()) > 0 {
					t.Errorf("got %+v and %v in the stream, want the receipt of the first attempt", r, s.Held())
				}
			})
		})
	}
}

// What files a copy as absorbed goes when the receipt does.
func TestWorker_AbsorbedEntriesExpire(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: time.Hour})
		stop := workOnDouble(t, s.Connect("w", nil), settings, func(context.Context, *Claim) (Result, error) { return Result{}, nil })
		for range 2 {
			sendOnDouble(t, s, "a")
			time.Sleep(time.Minute)
		}
		key := kvstate.AbsorbedKey(2)
		if s.Entry(key).Raw == nil {
			t.Error("the copy is not filed")
		}
		time.Sleep(time.Hour)
		stop()
		if e := s.Entry(key); e.Raw != nil {
			t.Errorf("%s is still there: %q", key, e.Raw)
		}
	})
}

// A command of a kind that nobody handles is not tried as often as one that fails.
func TestWorker_TriesAnUnknownKindFewTimes(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		stop := routeOnDouble(t, s.Connect("w", nil), settings, Route{Kind: "other", Handler: HandlerFunc(func(context.Context, *Claim) (Result, error) { return Result{}, nil })})
		sendOnDouble(t, s, "a")
		time.Sleep(24 * time.Hour)
		stop()
		if r := s.Entry("a").Record; r == nil || r.Reason != kvstate.ReasonUnknownKind || r.Attempt != unknownKindAttempts {
			t.Errorf("got %+v, want it parked after %d attempts", r, unknownKindAttempts)
		}
	})
}

// The follow-ups of a Confirm that finds that nothing happened are not born with
// the receipt of the attempt that then succeeds.
func TestWorker_TakesBackTheFollowUpsOfAConfirm(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		stop := routeOnDouble(t, s.Connect("w", nil), settings, Route{
			Kind: "k",
			Handler: HandlerFunc(func(ctx context.Context, c *Claim) (Result, error) {
				if c.Attempt() > 1 {
					return Result{}, nil
				}
				_, err := c.Prepare(ctx, []byte("pay"))
				return Result{}, errors.Join(errors.New("failed"), err)
			}),
			Confirm: func(_ context.Context, c *Claim, _ []byte) (Finding, Result, error) {
				return NotDone, Result{}, c.FollowUp(Command{ID: "child", Kind: "k"})
			},
		})
		sendOnDouble(t, s, "a")
		time.Sleep(10 * time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || len(r.FollowUps) > 0 {
			t.Errorf("got %+v, want a receipt without follow-ups", r)
		}
	})
}

// A command that was parked as uncertain and sent back runs again: the effect
// that it had announced is a person's to have looked at.
func TestWorker_RunsWhatWasSentBackAsUncertain(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		calls := 0
		stop := workOnDouble(t, s.Connect("w", nil), settings, func(ctx context.Context, c *Claim) (Result, error) {
			if calls++; calls > 1 {
				return Result{}, nil
			}
			_, err := c.Prepare(ctx, []byte("pay"))
			return Result{}, errors.Join(errors.New("failed"), err)
		})
		sendOnDouble(t, s, "a")
		time.Sleep(time.Minute)
		if r := s.Entry("a").Record; r == nil || r.Reason != kvstate.ReasonUncertain {
			t.Errorf("got %+v, want it parked as uncertain", r)
		}
		operator := s.Connect("desk", nil)
		if _, err := desk.New(operator.Commands(), operator.Records()).Requeue(t.Context(), desk.Act{By: "ann"}, "a"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed || r.Attempt != 1 || calls != 2 {
			t.Errorf("got %+v after %d calls, want a receipt of the first attempt since", r, calls)
		}
	})
}

// A command was completed between the look of whoever takes it over and its
// claim: the receipt stays.
func TestWorker_TakesOverNothingThatWasCompletedMeanwhile(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 10 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var calls atomic.Int64
		work := func(name string, late time.Duration) (stop func()) {
			var once sync.Once
			h := s.Connect(name, func(op memory.Op) (f memory.Fate) {
				if op == memory.OpWrite {
					once.Do(func() { f.Delay = late })
				}
				return f
			})
			return workOnDouble(t, h, settings, func(context.Context, *Claim) (Result, error) {
				calls.Add(1)
				return Result{Body: []byte(name)}, nil
			})
		}
		first := work("first", settings.Lease+time.Second)
		sendOnDouble(t, s, "a")
		time.Sleep(time.Second)
		second := work("second", 5*time.Second)
		time.Sleep(time.Minute)
		first()
		second()
		refused := false
		for _, e := range s.Log() {
			refused = refused || e.What == memory.Refused && e.By == "second"
		}
		if r := s.Entry("a").Record; r == nil || string(r.Result) != "first" || r.Attempt != 1 || calls.Load() != 1 || len(s.Held()) > 0 {
			t.Errorf("got %+v after %d calls, want the receipt of the first attempt alone", r, calls.Load())
		}
		if !refused {
			t.Error("no claim came too late: nothing was tested")
		}
	})
}

// The header of an announced effect says so: damaged, it is told by that alone
// from a claim, which may go on from the record before.
func TestClaim_Prepare_IsLabelled(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		stop := workOnDouble(t, s.Connect("w", nil), settings, func(ctx context.Context, c *Claim) (Result, error) {
			_, err := c.Prepare(ctx, []byte("pay"))
			if got := s.Entry("a").Label; got != kvstate.Prepared {
				t.Errorf("got the label %q, want %q", got, kvstate.Prepared)
			}
			return Result{}, err
		})
		sendOnDouble(t, s, "a")
		time.Sleep(time.Minute)
		stop()
		if r := s.Entry("a").Record; r == nil || r.State != kvstate.Completed {
			t.Errorf("got %+v, want a receipt", r)
		}
	})
}
