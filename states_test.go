package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
)

func TestPool_States(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	ctx, cancel := context.WithCancel(r.ctx)
	mux := handle("echo", echo)
	mux.Handle("refuse", tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Reject(errors.New("never"))
	}))
	w, err := r.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- w.Run(ctx) }()
	defer func() { cancel(); <-over }()

	// More than one request's worth, and every third of another fate.
	var ids []string
	for i := range 300 {
		kind := "echo"
		if i%3 == 0 {
			kind = "refuse"
		}
		id := fmt.Sprintf("a %d", i)
		r.submit(t, tallyman.Command{ID: id, Kind: kind})
		ids = append(ids, id)
	}
	for _, id := range ids {
		if _, err := r.Wait(r.ctx, id); err != nil && !errors.Is(err, tallyman.ErrParked) {
			t.Fatal(err)
		}
	}
	ids = append(ids, "unknown", ids[1])
	got, err := r.States(r.ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		want := tallyman.Completed
		switch {
		case id == "unknown":
			want = ""
		case i < 300 && i%3 == 0:
			want = tallyman.Parked
		}
		if got[i] != want {
			t.Errorf("state of %q = %q, want %q", id, got[i], want)
		}
	}
	if _, err := r.States(r.ctx, []string{strings.Repeat("x", 257)}); !errors.Is(err, tallyman.ErrInvalidID) {
		t.Errorf("got %v, want ErrInvalidID", err)
	}
	if got, err := r.States(r.ctx, nil); err != nil || len(got) != 0 {
		t.Errorf("States of none = %v, %v", got, err)
	}
}
