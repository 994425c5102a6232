package tallyman_test

import (
	"fmt"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/stream"
)

// TestSweep_ForgedWord: whoever tells workers that commands are acked which are
// not, whether out of malice or by mistake, takes none of them out of the stream.
func TestSweep_ForgedWord(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{Queues: []string{"default", "other"}})
	r.many(t, "other", "o", 3) // 1..3, which nobody works on
	pace := quick
	pace.Page = 2
	w, _ := sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	r.settled(t, r.many(t, "", "a", 3)...) // 4..6
	r.holds(t, 1, 2, 3)
	state, err := r.Commands().State(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	// That they are settled in the queue whose floor is high, and in their own, and
	// in more queues than there can be, of which the ledger keeps a bound (TestLedger).
	for i := range 2000 {
		for _, queue := range []string{"default", "other", fmt.Sprint("none-", i)} {
			if err := r.Commands().Tell(queue, state.Created, []stream.Run{{From: 1, Count: 100}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, r.ctx, "the worker to hear it", func() bool { return w.Knows("default", 50) && w.Knows("other", 50) })
	r.many(t, "other", "p", 3) // 7..9
	for i := range 5 {
		r.settled(t, r.many(t, "", fmt.Sprint("b", i), 3)...)
		r.holds(t, 1, 2, 3, 7, 8, 9)
	}
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", echo), Queues: []string{"other"}})
	r.settled(t, "o-0", "o-1", "o-2", "p-0", "p-1", "p-2")
	r.emptied(t)
	r.balanced(t)
}
