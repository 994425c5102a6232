package tallyman

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// A worker goes by the number of shards that it read when it opened the pool. One
// that was frozen or cut off while the pool was spread anew has no pull open by which
// Reshard would notice it, and comes back with the old number: it would file records
// where nobody looks for them, and ids would run twice. So it takes on no
// delivery unless it has read within the last accordTime, from the leader, that the
// number still holds. Reshard in turn lets that time pass once the mark is stored:
// whoever takes on anything after that knows of the mark.

// accordTime is how long a worker goes by the layout that it has read, counted from
// when it asked.
const accordTime = time.Second

// accord is what somebody goes by who acts on the pool's layout: the stored
// settings, read from the leader not long ago. It is safe for concurrent use.
type accord struct {
	read  func(context.Context) (kvstate.Entry, error) // the settings, from the leader; nil if they never change
	judge func(kvstate.Entry) error                    // whether they still say what is gone by
	trust time.Duration                                // for how long that holds without asking

	mu   sync.Mutex
	from time.Time // when the last read began that agreed
}

// fresh reports whether the layout holds without asking.
func (a *accord) fresh() bool {
	if a.read == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.from.IsZero() && time.Since(a.from) < a.trust
}

// renew asks. Errors: one that wraps ErrSettings if the layout is another by now; any
// other means that nobody could be asked.
func (a *accord) renew(ctx context.Context) error {
	from := time.Now()
	e, err := a.read(ctx)
	if err != nil {
		return err
	}
	if err := a.judge(e); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if from.After(a.from) {
		a.from = from
	}
	return nil
}

// holds asks only if the last answer is too old.
func (a *accord) holds(ctx context.Context) error {
	if a.fresh() {
		return nil
	}
	return a.renew(ctx)
}

// sameLayout judges settings for a worker of this pool.
func (p *Pool) sameLayout(e kvstate.Entry) error {
	if e.Raw == nil {
		return fmt.Errorf("%w: the settings of pool %q are gone; %s", ErrNoPool, p.name, p.remedy())
	}
	have, is, err := decodeSettings(e.Raw)
	switch {
	case is != (place{}):
		return misplaced(place{}, is)
	case err != nil:
		return err
	case have.Shards != p.settings.Shards:
		return fmt.Errorf("%w: the pool has %s by now, this worker was started when it had %d; start it again", ErrSettings, plural.Count(have.Shards, "shard"), p.settings.Shards)
	}
	return nil
}

// agreed calls proceed with deliveries once the layout is known to hold. Where it
// does not, they go back and the worker ends.
func (w *Worker) agreed(runs []*run, proceed func([]*run)) {
	var err error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		runs = held(runs, err)
		if len(runs) == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(w.life, settleTime)
		err = w.accord.renew(ctx)
		cancel()
		if err == nil {
			proceed(runs)
			return
		}
		if isOneOf(err, ErrSettings) {
			break
		}
		if pipeline.Sleep(w.life, pause) != nil {
			break
		}
	}
	if w.life.Err() == nil {
		w.end(err)
	}
	for _, r := range runs {
		r.observe(Event{Type: EventHandedBack})
		r.nakIfHeld(0)
	}
}

// recheck ends the worker if the layout is another by now.
func (w *Worker) recheck() {
	if w.accord.read == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.life, settleTime)
	defer cancel()
	if err := w.accord.renew(ctx); isOneOf(err, ErrSettings) {
		w.end(err)
	}
}

// held drops the deliveries whose lease has run out, and returns the others.
func held(runs []*run, why error) []*run {
	left := runs[:0]
	for _, r := range runs {
		if r.lease.Held() {
			left = append(left, r)
			continue
		}
		r.dropFor(why)
	}
	return left
}
