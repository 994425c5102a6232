package demo

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
)

const (
	lookEvery = 20 * time.Millisecond
	// stalled is after how long without any news the run is given up.
	stalled = time.Minute
	// emptyWait is how long the stream may take to become empty once all
	// commands are settled: the acks of a killed worker come with the next lease.
	emptyWait = 10 * leaseTime
)

// fault is what befalls the worker that holds a command.
type fault int

const (
	faultKill fault = iota
	faultFreeze
)

// run is one demo under way. It is used by one goroutine.
type run struct {
	plan     *plan
	root     *os.Root
	objects  jetstream.ObjectStore
	pool     *tallyman.Pool
	watch    *watch
	crew     *crew
	progress *progress

	books    Books
	copies   int                // repeated submissions
	faults   map[string][]fault // by id: still to come
	reported map[string]int     // by id: how often workers reported it as completed
}

// assign chooses the commands that faults hit, spread between a tenth and four
// fifths of the way, and marks them so that their handlers pause. With few
// files one command gets several faults, one in each attempt.
func assign(orders []order, kills, freezes int) map[string][]fault {
	faults := map[string][]fault{}
	n := kills + freezes
	for i := range n {
		at := len(orders)/10 + i*(len(orders)*7/10)/max(n, 1)
		o := &orders[min(at, len(orders)-1)]
		f := faultKill
		// Freezes lie evenly among the kills.
		if (i+1)*freezes/n > i*freezes/n {
			f = faultFreeze
		}
		if o.Pause == "" {
			// A worker that dies or freezes after its effect, but before its
			// receipt, is the harder case; half of the kills come earlier.
			o.Pause = afterStoring
			if f == faultKill && i%2 == 0 {
				o.Pause = beforeStoring
			}
		}
		faults[o.Path] = append(faults[o.Path], f)
	}
	return faults
}

func (r *run) hire() error {
	m, err := r.crew.hire()
	if err == nil {
		r.progress.say("worker %d started", m.pid())
	}
	return err
}

// tenth yields every tenth command, beginning with the given one, and at least one.
func tenth(orders []order, from int) iter.Seq[order] {
	return func(yield func(order) bool) {
		for i := min(from, len(orders)-1); i < len(orders); i += 10 {
			if !yield(orders[i]) {
				return
			}
		}
	}
}

// submit submits every command, and a tenth of them again at once.
func (r *run) submit(ctx context.Context) error {
	all := func(yield func(order) bool) {
		for _, o := range r.plan.orders {
			if !yield(o) {
				return
			}
		}
	}
	if _, err := r.send(ctx, all); err != nil {
		return err
	}
	n, err := r.send(ctx, tenth(r.plan.orders, 0))
	r.copies += n
	return err
}

// send submits commands and returns how many.
func (r *run) send(ctx context.Context, orders iter.Seq[order]) (n int, err error) {
	var failed error
	commands := func(yield func(tallyman.Command) bool) {
		for o := range orders {
			c, err := pack.Command(o.Path, o)
			if err != nil {
				failed = err
				return
			}
			n++
			if !yield(c) {
				return
			}
		}
	}
	producer := r.pool.NewProducer(tallyman.ProducerConfig{})
	defer func() { err = errors.Join(err, producer.Close(ctx)) }()
	err = producer.SubmitMany(ctx, commands, func(_ int, s tallyman.Submission, err error) {
		if err != nil {
			failed = err
			return
		}
		r.books.Submitted++
		if s.Absorbed {
			r.books.Absorbed++
		}
	})
	return n, errors.Join(err, failed)
}

// follow watches over the workers, and lets the faults befall them, until
// every command is settled and nobody is frozen any more.
func (r *run) follow(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	settled, news := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if err := r.readEffects(); err != nil {
			return err
		}
		if err := r.thaw(); err != nil {
			return err
		}
		if err := r.crew.check(); err != nil {
			return err
		}
		if n := r.watch.settled(); n > settled {
			settled, news = n, time.Now()
		}
		r.progress.set(settled)
		switch {
		case settled >= len(r.plan.orders) && !r.anyFrozen():
			return nil
		case time.Since(news) > stalled:
			r.books.note("given up: no receipt for %v", stalled)
			return r.thawAll()
		}
	}
}

// readEffects reads what the workers have done since the last look.
func (r *run) readEffects() error {
	for _, m := range r.crew.members {
		list, err := m.tail.next()
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := r.effect(m, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) effect(m *member, e effect) error {
	switch e.What {
	case effectBegun:
		r.books.Executions++
		for _, other := range r.crew.members {
			if other != m && other.frozen != nil && other.frozen.id == e.ID {
				other.frozen.taken = true
			}
		}
	case effectPaused:
		return r.paused(m, e.ID)
	case tallyman.EventCompleted.String():
		r.reported[e.ID]++
	case tallyman.EventTakeover.String():
		r.books.Takeovers++
	case tallyman.EventRefused.String():
		r.books.Refused++
	}
	return nil
}

// paused lets the next fault of a command befall the worker that holds it, or
// lets the handler go on if there is none.
func (r *run) paused(m *member, id string) error {
	if !m.awake() {
		return nil // it has lost the command: whoever takes it over pauses again
	}
	if len(r.faults[id]) == 0 {
		m.goOn(id)
		return nil
	}
	next := r.faults[id][0]
	r.faults[id] = r.faults[id][1:]
	if next == faultKill {
		m.kill()
		r.books.Kills++
		r.progress.say("worker %d killed while it held %s", m.pid(), id)
		return r.hire()
	}
	switch err := freeze(m.cmd.Process); {
	case errors.Is(err, errors.ErrUnsupported):
		r.books.note("nothing was frozen: this system cannot stop a process")
		return r.paused(m, id)
	case err != nil:
		return fmt.Errorf("freeze worker %d: %w", m.pid(), err)
	}
	m.frozen = &frozen{since: time.Now(), id: id}
	r.books.Freezes++
	r.progress.say("worker %d frozen while it held %s", m.pid(), id)
	return nil
}

// thaw wakes workers that were frozen beyond their lease, once another worker
// has begun what they held, or there was none to do so.
func (r *run) thaw() error {
	for _, m := range r.crew.members {
		if m.frozen == nil {
			continue
		}
		age := time.Since(m.frozen.since)
		if age < leaseTime+leaseTime/4 || !m.frozen.taken && age < 3*leaseTime {
			continue
		}
		if err := r.wake(m); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) wake(m *member) error {
	if err := thaw(m.cmd.Process); err != nil {
		return fmt.Errorf("wake worker %d: %w", m.pid(), err)
	}
	what := "its command had been taken over"
	if !m.frozen.taken {
		what = "nobody was there to take its command over"
	}
	r.progress.say("worker %d woken after %.1f s: its lease had run out, %s", m.pid(), time.Since(m.frozen.since).Seconds(), what)
	m.frozen = nil
	return nil
}

func (r *run) anyFrozen() bool {
	for _, m := range r.crew.members {
		if m.frozen != nil {
			return true
		}
	}
	return false
}

func (r *run) thawAll() error {
	var failed error
	for _, m := range r.crew.members {
		if m.frozen != nil {
			failed = errors.Join(failed, r.wake(m))
		}
	}
	return failed
}

// settle repeats submissions, sends the workers home and closes the books.
func (r *run) settle(ctx context.Context) error {
	n, err := r.send(ctx, tenth(r.plan.orders, 5))
	r.copies += n
	if err != nil {
		return err
	}
	if err := r.drained(ctx); err != nil {
		return err
	}
	if err := r.crew.dismiss(); err != nil {
		return err
	}
	if err := r.readEffects(); err != nil {
		return err
	}
	r.progress.close()
	fmt.Fprintln(os.Stderr, "closing the books")
	r.watch.close()
	if r.books.Completed, err = r.watch.scan(ctx, r.pool.Records()); err != nil {
		return err
	}
	r.books.tally(r.plan.orders, r.watch, r.reported)
	if err := r.books.verify(ctx, r.plan, r.root, r.objects, r.watch.parked); err != nil {
		return err
	}
	wrong, err := balance(ctx, r.pool.Commands(), r.pool.Records())
	if err != nil {
		return err
	}
	if r.books.Balanced = wrong == ""; !r.books.Balanced {
		r.books.note("%s", wrong)
	}
	for id, left := range r.faults {
		for range left {
			r.books.note("%s: a fault that was meant for its worker never came", id)
		}
	}
	return nil
}

// drained waits until the stream is empty, which the books look at again.
func (r *run) drained(ctx context.Context) error {
	for begin := time.Now(); time.Since(begin) < emptyWait; {
		state, err := r.pool.Commands().State(ctx)
		if err != nil {
			return err
		}
		if state.Messages == 0 {
			return nil
		}
		if err := r.readEffects(); err != nil { // somebody may still pause
			return err
		}
		if err := wait(ctx, lookEvery); err != nil {
			return err
		}
	}
	return nil
}
