package audit_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
)

// Active without a lease, for ever, once its entry was deleted in mid-run:
// asynq#1144.
func TestRun_RecordDeletedInMidRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		removed bool // from the stream as well
	}{{"and the command still in the stream", false}, {"and the command from the stream too", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.submit(t, 1, 1)
			entered, goOn := make(chan struct{}), make(chan struct{})
			mux := &tallyman.Mux{}
			mux.Handle("echo", tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				if err := c.Progress(ctx, 1, []byte("half")); err != nil {
					return tallyman.Result{}, err
				}
				entered <- struct{}{}
				<-goOn
				if err := c.Progress(ctx, 2, []byte("nearly")); err != nil {
					return tallyman.Result{}, err
				}
				return tallyman.Result{Body: []byte("done")}, nil
			}))
			w, err := s.NewWorker(tallyman.WorkerConfig{Mux: mux})
			if err != nil {
				t.Fatal(err)
			}
			life, stop := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- w.Run(life) }()
			t.Cleanup(func() {
				stop()
				if err := <-done; err != nil {
					t.Errorf("worker: %v", err)
				}
			})
			<-entered
			if got := s.audit(t, audit.Options{}); !got.Balanced || got.Pending != 1 {
				t.Errorf("while it runs: got %+v, want it pending", got)
			}
			s.remove(t, "c-1")
			if c.removed {
				if err := s.commands(t).DeleteMsg(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
			}
			got := s.audit(t, audit.Options{})
			switch want := []uint64{1}; {
			case c.removed && (got.Balanced || !slices.Equal(got.Missing, want)):
				t.Errorf("in the gap: got %+v, want sequence 1 missing", got)
			case !c.removed && (!got.Balanced || got.Pending != 1):
				t.Errorf("in the gap: got %+v, want it pending", got)
			}
			close(goOn)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			receipt, err := s.Wait(ctx, "c-1")
			if err != nil || string(receipt.Result) != "done" || receipt.Attempt != 1 {
				t.Errorf("got %+v, %v; want the receipt of attempt 1", receipt, err)
			}
			if got := s.audit(t, audit.Options{}); !got.Balanced || got.Completed != 1 {
				t.Errorf("at the end: got %+v, want balanced books with one receipt", got)
			}
		})
	}
}
