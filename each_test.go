package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
)

func TestEach(t *testing.T) {
	t.Parallel()
	letters := []string{"a", "b", "c", "d", "e", "f", "g"}
	// attempt runs Each from offset on until fail, and returns what was done and saved.
	attempt := func(from uint64, every int, fail string) (did []string, saved []uint64, err error) {
		claim := tallyman.Detached(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "x", Kind: "k"}, Offset: from, Checkpoint: []byte("state"),
			OnProgress: func(offset uint64, state []byte) error {
				if string(state) != "state" {
					t.Errorf("saved the state %q, want the one that was there", state)
				}
				saved = append(saved, offset)
				return nil
			},
		})
		err = tallyman.Each(t.Context(), claim, tallyman.Slice(letters), every, func(_ context.Context, n uint64, item string) error {
			if item != letters[n] {
				t.Errorf("item %d is %q", n, item)
			}
			if item == fail {
				return errBroken
			}
			did = append(did, item)
			return nil
		})
		return did, saved, err
	}
	for _, tt := range []struct {
		name  string
		from  uint64
		every int
		fail  string
		did   string
		saved []uint64
	}{
		{"saves after every so many, and at the end", 0, 3, "", "abcdefg", []uint64{3, 6, 7}},
		{"begins behind what is done", 4, 2, "", "efg", []uint64{6, 7}},
		{"keeps what is done when an item fails", 0, 3, "e", "abcd", []uint64{3, 4}},
		{"saves nothing twice", 3, 3, "d", "", nil},
		{"counts each item if asked for less than one", 5, 0, "", "fg", []uint64{6, 7}},
		{"has nothing to do at the end", 7, 3, "", "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			did, saved, err := attempt(tt.from, tt.every, tt.fail)
			if got := strings.Join(did, ""); got != tt.did || !slices.Equal(saved, tt.saved) {
				t.Errorf("did %q and saved %v, want %q and %v", got, saved, tt.did, tt.saved)
			}
			if (tt.fail != "") != errors.Is(err, errBroken) || tt.fail == "" && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("refuses a batch that has become shorter", func(t *testing.T) {
		t.Parallel()
		if _, _, err := attempt(8, 1, ""); err == nil || !strings.Contains(err.Error(), "not the one that was begun") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("stops between two items when its context ends, and saves", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		var saved []uint64
		claim := tallyman.Detached(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Kind: "k"},
			OnProgress: func(offset uint64, _ []byte) error { saved = append(saved, offset); return nil }})
		err := tallyman.Each(ctx, claim, tallyman.Seq(slices.Values(letters)), 100, func(_ context.Context, n uint64, _ string) error {
			if n == 1 {
				cancel(tallyman.ErrDraining)
			}
			return nil
		})
		if !errors.Is(err, tallyman.ErrDraining) || !slices.Equal(saved, []uint64{2}) {
			t.Errorf("got %v, saved %v; want ErrDraining and offset 2", err, saved)
		}
	})
	t.Run("reads lines", func(t *testing.T) {
		t.Parallel()
		read := func(text string) (lines []string, err error) {
			claim := tallyman.Detached(tallyman.DetachedConfig{Command: tallyman.Command{ID: "x", Kind: "k"}, Offset: 1})
			err = tallyman.Each(t.Context(), claim, tallyman.Lines(strings.NewReader(text)), 1, func(_ context.Context, _ uint64, line string) error {
				lines = append(lines, line)
				return nil
			})
			return lines, err
		}
		if got, err := read("one\r\ntwo\n\nfour"); err != nil || fmt.Sprintf("%q", got) != `["two" "" "four"]` {
			t.Errorf("got %q, %v", got, err)
		}
		if got, err := read("one\ntwo\n" + strings.Repeat("x", tallyman.MaxLine+1)); err == nil || fmt.Sprintf("%q", got) != `["two"]` {
			t.Errorf("got %d lines, %v; want an error for the long one", len(got), err)
		}
	})
}

func TestEach_ResumesAfterADeath(t *testing.T) {
	t.Parallel()
	r := newRig(t, mortal(), tallyman.Topology{})
	items := make([]int, 50)
	atItem, die := make(chan struct{}), make(chan struct{})
	kill := doomed(t, r, tallyman.WorkerConfig{Mux: handle("batch", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		return tallyman.Result{}, tallyman.Each(ctx, c, tallyman.Slice(items), 10, func(_ context.Context, n uint64, _ int) error {
			if n == 37 {
				close(atItem)
				<-die
			}
			return nil
		})
	})})
	r.submit(t, tallyman.Command{ID: "b", Kind: "batch"})
	<-atItem
	kill()
	close(die)
	start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("batch", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
		first := c.Offset()
		did := 0
		err := tallyman.Each(ctx, c, tallyman.Slice(items), 10, func(context.Context, uint64, int) error { did++; return nil })
		return tallyman.Result{Body: fmt.Appendf(nil, "%d from %d", did, first)}, err
	})})
	got, err := r.Wait(r.ctx, "b")
	if err != nil || string(got.Result) != "20 from 30" {
		t.Errorf("got %q, %v; want 20 items from 30 on", got.Result, err)
	}
	if rec := r.entry(t, "b").Record; rec.Offset != 50 {
		t.Errorf("the receipt has offset %d, want 50", rec.Offset)
	}
}
