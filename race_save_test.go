package tallyman

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/internal/memory"
)

// A save whose answer got lost may have been stored all the same. What was
// written over it took the command back to an offset before it (I5).
func TestRun_Save_ADoubtfulPointIsNotWrittenBackBehind(t *testing.T) {
	t.Parallel()
	settings := Settings{Lease: 6 * time.Second}.WithDefaults()
	for name, handle := range map[string]func(ctx, short context.Context, c *Claim) error{
		"by a failure, with progress held back before it": func(ctx, short context.Context, c *Claim) error {
			return errors.Join(errors.New("failed"), c.Progress(ctx, 1, []byte("at 1")), c.Progress(ctx, 8, []byte("at 8")), c.Progress(short, 10, []byte("at 10")))
		},
		"by the receipt": func(ctx, short context.Context, c *Claim) error {
			if c.Progress(ctx, 1, []byte("at 1")) != nil || c.Progress(ctx, 8, []byte("at 8")) != nil || c.Progress(short, 10, []byte("at 10")) == nil {
				t.Error("the second save alone was to fail")
			}
			return nil
		},
		"by Prepare": func(ctx, short context.Context, c *Claim) error {
			if c.Progress(ctx, 1, []byte("at 1")) != nil || c.Progress(ctx, 8, []byte("at 8")) != nil || c.Progress(short, 10, []byte("at 10")) == nil {
				t.Error("the second save alone was to fail")
			}
			if _, err := c.Prepare(ctx, []byte("pay")); err != nil {
				return err
			}
			if got := c.Offset(); got != 10 {
				t.Errorf("the claim is at offset %d, want 10", got)
			}
			return c.Withdraw(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := memory.NewServer(memory.Config{Lease: settings.Lease, Retention: DefaultRetention})
				var mu sync.Mutex
				writes := 0
				h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
					mu.Lock()
					defer mu.Unlock()
					if op == memory.OpWrite {
						if writes++; writes == 2 {
							// The first answer is late, and so is that to the question after it.
							f.Unanswered = true
						}
					}
					if op == memory.OpRead && writes == 2 {
						f.Lost = true
						writes = 3
					}
					return f
				})
				mux := &Mux{}
				calls := 0
				if err := mux.Route(Route{Kind: "k", SaveCount: 2, Handler: HandlerFunc(func(ctx context.Context, c *Claim) (Result, error) {
					if calls++; calls > 1 {
						if c.Offset() != 10 || string(c.Checkpoint()) != "at 10" {
							t.Errorf("the next attempt begins at offset %d with %q, want 10", c.Offset(), c.Checkpoint())
						}
						return Result{}, nil
					}
					short, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					return Result{}, handle(ctx, short, c)
				})}); err != nil {
					t.Fatal(err)
				}
				w, err := onDouble(h, settings).NewWorker(WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler), Drain: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				stop := runOnDouble(t, w)
				sendOnDouble(t, s, "a")
				for range 60 {
					time.Sleep(time.Second)
				}
				stop()
				var offsets []string
				last := uint64(0)
				for _, e := range s.Log() {
					r := e.Entry.Record
					if e.What != memory.Written || r == nil {
						continue
					}
					offsets = append(offsets, string(r.State)+" "+strconv.FormatUint(r.Offset, 10))
					if r.Offset < last {
						t.Errorf("offset %d is stored over %d", r.Offset, last)
					}
					last = r.Offset
				}
				if r := s.Entry("a").Record; r == nil || r.State != Completed || last != 10 {
					t.Errorf("stored: %s; want a receipt at offset 10", strings.Join(offsets, ", "))
				}
			})
		})
	}
}

// keeping is a saver that stores everything.
type keeping struct{ stored []point }

func (k *keeping) save(_ context.Context, _ *Claim, p *point) (uint64, error) {
	k.stored = append(k.stored, *p)
	return 1, nil
}

// Each took the checkpoint that was durable for the newest one, so that under a
// pace an older state was stored with a newer offset.
func TestEach_KeepsACheckpointThatIsHeldBack(t *testing.T) {
	t.Parallel()
	var k keeping
	c := &Claim{cmd: &Command{ID: "a", Kind: "k"}, attempt: 1, saver: &k, pace: pace{count: 3}}
	err := Each(t.Context(), c, Slice([]int{1, 2, 3, 4, 5, 6}), 1, func(ctx context.Context, n uint64, item int) error {
		return c.Progress(ctx, n, []byte(strconv.Itoa(item)))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range k.stored {
		// Item n+1 has been dealt with at offset n, where its checkpoint is
		// given, and at offset n+1.
		if got, _ := strconv.ParseUint(string(p.state), 10, 64); got < p.offset {
			t.Errorf("stored offset %d with the checkpoint of item %d", p.offset, got)
		}
	}
	if last := k.stored[len(k.stored)-1]; last.offset != 6 || string(last.state) != "6" {
		t.Errorf("the last that is stored is offset %d with %q", last.offset, last.state)
	}
}
