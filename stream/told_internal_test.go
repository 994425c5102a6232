package stream

import (
	"slices"
	"testing"
	"time"
)

func TestRuns(t *testing.T) {
	t.Parallel()
	got := Runs([]uint64{9, 1, 2, 3, 3, 7, 8})
	if want := []Run{{1, 3}, {7, 3}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	made := time.Unix(1700000000, 123)
	at, back, err := decodeRuns(encodeRuns(made, got))
	if err != nil || !at.Equal(made) || !slices.Equal(back, got) {
		t.Errorf("there and back: got %v of %v, %v, want %v of %v", back, at, err, got, made)
	}
	for name, b := range map[string][]byte{
		"empty": {}, "of a newer version": {2}, "without a time": {1},
		"cut off":            encodeRuns(made, got)[:len(encodeRuns(made, got))-1],
		"with an empty run":  encodeRuns(made, []Run{{5, 0}}),
		"with a run too big": encodeRuns(made, []Run{{5, maxRun + 1}}),
		"with too much":      encodeRuns(made, []Run{{5, maxRun}, {maxRun + 10, 1}}),
		"beyond all numbers": encodeRuns(made, []Run{{^uint64(0), 5}}),
	} {
		if _, runs, err := decodeRuns(b); err == nil {
			t.Errorf("%s: got %v, want an error", name, runs)
		}
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	var runs []Run
	for i := range uint64(maxTold + 10) {
		runs = append(runs, Run{2 * i, 1})
	}
	runs = append(runs, Run{1 << 40, maxRun}, Run{1 << 41, maxRun})
	var back []Run
	n := 0
	for part := range parts(runs) {
		n++
		_, some, err := decodeRuns(encodeRuns(time.Unix(1, 0), part))
		if err != nil {
			t.Fatalf("part %d of %d runs: %v", n, len(part), err)
		}
		back = append(back, some...)
	}
	if n != 4 || !slices.Equal(back, runs) {
		t.Errorf("got %d parts with %d runs, want 4 with all %d", n, len(back), len(runs))
	}
}

func FuzzRuns(f *testing.F) {
	f.Add(encodeRuns(time.Unix(1, 2), []Run{{1, 2}, {9, 1}}))
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		at, runs, err := decodeRuns(b)
		if err != nil {
			return
		}
		sum := uint64(0)
		for _, r := range runs {
			sum += r.Count
		}
		if sum > maxRun || len(runs) > maxTold {
			t.Errorf("took %d sequences in %d runs", sum, len(runs))
		}
		againAt, again, err := decodeRuns(encodeRuns(at, runs))
		if err != nil || !againAt.Equal(at) || !slices.Equal(again, runs) {
			t.Errorf("got %v, %v, want %v", again, err, runs)
		}
	})
}
