package tallyman

import (
	"time"

	"github.com/tallyman-go/tallyman/internal/sweep"
)

// SweepPace sets how a worker sweeps; for tests, before it runs. Zero values
// leave what is there.
type SweepPace struct {
	Off                           bool // acked commands stay
	Every                         time.Duration
	ByQueue, Single, Most, Page   int
	ByQueueEvery, Patient, Longer time.Duration
}

// Pace sets it.
func (w *Worker) Pace(p SweepPace) {
	if p.Off {
		w.sweepers = nil
		return
	}
	for _, s := range w.sweepers {
		p.set(&s.Pace)
	}
}

func (p SweepPace) set(at *sweep.Pace) {
	for _, f := range []struct {
		to  *time.Duration
		set time.Duration
	}{{&at.Every, p.Every}, {&at.Quiet, 3 * p.Every}, {&at.ByQueueEvery, p.ByQueueEvery}, {&at.Patient, p.Patient}, {&at.MostLong, p.Longer}} {
		if f.set != 0 {
			*f.to = f.set
		}
	}
	for _, f := range []struct {
		to  *int
		set int
	}{{&at.ByQueue, p.ByQueue}, {&at.Single, p.Single}, {&at.Most, p.Most}, {&at.Page, p.Page}} {
		if f.set != 0 {
			*f.to = f.set
		}
	}
}

// Knows reports whether the worker's sweeper of the first shard knows that a sequence was acked.
func (w *Worker) Knows(queue string, seq uint64) bool { return w.sweepers[0].Knows(queue, seq) }
