package tallyman

import "time"

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
		s.pace(p)
	}
}

func (s *sweeper) pace(p SweepPace) {
	t := &s.terms
	for _, f := range []struct {
		to  *time.Duration
		set time.Duration
	}{{&t.every, p.Every}, {&t.quiet, 3 * p.Every}, {&t.byQueueEvery, p.ByQueueEvery}, {&t.patient, p.Patient}, {&t.mostLong, p.Longer}} {
		if f.set != 0 {
			*f.to = f.set
		}
	}
	for _, f := range []struct {
		to  *int
		set int
	}{{&t.byQueue, p.ByQueue}, {&t.single, p.Single}, {&t.most, p.Most}, {&t.page, p.Page}} {
		if f.set != 0 {
			*f.to = f.set
		}
	}
}

// Knows reports whether the worker's ledger of the first shard has a sequence as acked.
func (w *Worker) Knows(queue string, seq uint64) bool { return w.sweepers[0].ledger.has(queue, seq) }

// LedgerQueues returns how many queues the worker's ledger of the first shard knows of.
func (w *Worker) LedgerQueues() int {
	l := &w.sweepers[0].ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}
