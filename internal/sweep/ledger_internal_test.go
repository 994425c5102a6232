package sweep

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/stream"
)

func TestLedger(t *testing.T) {
	t.Parallel()
	made := time.Unix(1, 5)
	begun := func() *ledger {
		l := &ledger{}
		l.begin(made)
		return l
	}
	through := func(t *testing.T, l *ledger, from uint64, f map[string]uint64, want uint64) {
		t.Helper()
		if got := l.through(from, math.MaxUint64, f); got != want {
			t.Errorf("through from %d with floors %v: got %d, want %d", from, f, got, want)
		}
	}
	t.Run("knows what was acked here and told by others, of all queues together", func(t *testing.T) {
		t.Parallel()
		l := begun()
		for _, seq := range []uint64{1, 2, 4, 4096, 4095} {
			l.add("a", seq)
		}
		told := l.settle()["a"]
		want := []stream.Run{{From: 1, Count: 2}, {From: 4, Count: 1}, {From: 4095, Count: 2}}
		if len(told) != 3 || told[0] != want[0] || told[1] != want[1] || told[2] != want[2] {
			t.Errorf("told: got %v, want %v", told, want)
		}
		l.hear("b", made, []stream.Run{{From: 3, Count: 1}, {From: 5, Count: 4090}})
		all := map[string]uint64{"a": 9999, "b": 9999}
		through(t, l, 1, all, 4097)
		through(t, l, 1, map[string]uint64{"a": 9999, "b": 2}, 3)
		through(t, l, 1, map[string]uint64{"a": 3, "b": 9999}, 4)
		through(t, l, 1, nil, 1)
		if got := l.through(1, 2, all); got != 3 {
			t.Errorf("below a limit of 2: got %d, want 3", got)
		}
	})
	t.Run("does not believe what is told of another stream, or before it has seen its own", func(t *testing.T) {
		t.Parallel()
		l := &ledger{}
		l.hear("a", time.Time{}, []stream.Run{{From: 1, Count: 1}})
		l.begin(made)
		l.hear("a", made.Add(1), []stream.Run{{From: 1, Count: 1}})
		if l.has("a", 1) {
			t.Error("it does")
		}
	})
	t.Run("keeps what was acked before the first look, and forgets it when the stream is made anew", func(t *testing.T) {
		t.Parallel()
		l := &ledger{}
		l.add("a", 7)
		l.begin(made)
		l.settle()
		if !l.has("a", 7) || l.has("b", 7) {
			t.Error("after the first look: want sequence 7 of queue a alone")
		}
		l.add("a", 8)
		l.begin(made.Add(time.Second))
		if told := l.settle(); l.has("a", 7) || l.has("a", 8) || len(told) != 0 {
			t.Error("it has sequences of the stream before")
		}
	})
	t.Run("forgets everything when sequences are handed out anew", func(t *testing.T) {
		t.Parallel()
		l := begun()
		l.hear("a", made, []stream.Run{{From: 1, Count: 10}})
		l.add("a", 11)
		l.forget()
		l.settle()
		through(t, l, 1, map[string]uint64{"a": 99}, 1)
		if l.has("a", 11) {
			t.Error("it has 11")
		}
	})
	t.Run("forgets what has left, also if it hears of that late", func(t *testing.T) {
		t.Parallel()
		l := begun()
		l.hear("a", made, []stream.Run{{From: 1, Count: 5000}})
		l.drop(4990)
		l.hear("a", made, []stream.Run{{From: 100, Count: 10}})
		for seq, want := range map[uint64]bool{105: false, 4989: false, 4990: true, 5000: true, 5001: false} {
			if got := l.has("a", seq); got != want {
				t.Errorf("has %d: got %v, want %v", seq, got, want)
			}
		}
	})
	t.Run("is bounded", func(t *testing.T) {
		t.Parallel()
		l := begun()
		for i := range uint64(ledgerChunks + 5) {
			l.hear("a", made, []stream.Run{{From: i * 4096, Count: 1}})
		}
		if got := len(l.acked["a"].chunks); got != ledgerChunks {
			t.Errorf("chunks: got %d, want %d", got, ledgerChunks)
		}
		for i := range ledgerQueues + 5 {
			l.hear(fmt.Sprint("none-", i), made, []stream.Run{{From: 1, Count: 1}})
		}
		if got := len(l.acked); got != ledgerQueues {
			t.Errorf("queues: got %d, want %d", got, ledgerQueues)
		}
	})
}
