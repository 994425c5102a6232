package tallyman

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// act is one call of a handler.
type act struct {
	n          int
	id         string
	by         *member
	attempt    int
	token      uint64 // when it began
	offset     uint64 // likewise
	checkpoint string
	at         time.Time
	confirms   bool          // a call of Confirm, under the claim of the attempt
	saved      []uint64      // offsets of which Progress said that they are durable
	delay      time.Duration // which the handler has asked for
}

// label stands in whatever an act leaves behind.
func (a *act) label() string { return fmt.Sprintf("<act %d>", a.n) }

// member is a worker's process.
type member struct {
	o      *ordeal
	name   string
	handle *memory.Handle
	worker *Worker
	cancel context.CancelFunc
}

// join starts a worker.
func (o *ordeal) join() {
	o.mu.Lock()
	o.people++
	m := &member{o: o, name: fmt.Sprint("w", o.people)}
	o.mu.Unlock()
	m.handle = o.server.Connect(m.name, o.fates(m))
	pool := onDouble(m.handle, o.settings)
	mux := &Mux{}
	for _, route := range o.mux.exact {
		own := *route
		own.Handler = HandlerFunc(m.act)
		if own.Kind == "risky" {
			own.Confirm = m.confirm
		}
		if err := mux.Route(own); err != nil {
			panic(err)
		}
	}
	worker, err := pool.NewWorker(WorkerConfig{
		Mux: mux, Name: m.name, Concurrency: 1 + o.draw(3), Drain: o.while(time.Second), Grace: time.Second,
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(e Event) {
			o.seen[e.Type].Add(1)
			o.note("%s: %s %s, attempt %d, %v", m.name, e.ID, e.Type, e.Attempt, e.Err)
		},
	})
	if err != nil {
		panic(err)
	}
	m.worker = worker
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	o.mu.Lock()
	o.alive[m] = true
	o.mu.Unlock()
	o.work.Go(func() {
		err := worker.Run(ctx)
		pool.Close()
		o.note("%s has ended: %v", m.name, err)
		if err != nil {
			o.leave(m, 0) // it came while it was cut off, say: another one comes
		}
	})
	o.note("%s joins", m.name)
}

// leave ends a worker that is not alive any more, or should not be, and lets
// another one take its place after a while.
func (o *ordeal) leave(m *member, after time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leaveLocked(m, after)
}

func (o *ordeal) leaveLocked(m *member, after time.Duration) {
	if !o.alive[m] {
		return
	}
	delete(o.alive, m)
	m.cancel()
	o.work.Go(func() {
		time.Sleep(after)
		o.join()
	})
}

// fates is the bad luck of a worker, or of the producer if m is nil.
func (o *ordeal) fates(m *member) memory.Faults {
	return func(op memory.Op) memory.Fate {
		o.mu.Lock()
		defer o.mu.Unlock()
		most := func(d time.Duration) time.Duration { return time.Duration(o.rng.Int64N(int64(d))) }
		f := memory.Fate{Delay: most(5 * time.Millisecond), Back: most(5 * time.Millisecond)}
		if o.calm {
			return f
		}
		strikes := func(of int) bool { return o.rng.IntN(10000) < of }
		mix, lease := o.faults, o.settings.Lease
		if strikes(mix.lose) {
			f.Lost = o.rng.IntN(2) == 0
			f.Unanswered = !f.Lost
			o.noteLocked("%s: %s is lost: %v, its answer: %v", m.who(), op, f.Lost, f.Unanswered)
		}
		if strikes(mix.delay) {
			f.Delay, f.Back = most(lease*2), most(lease)
			o.noteLocked("%s: %s takes %v, its answer %v", m.who(), op, f.Delay, f.Back)
		}
		if op == memory.OpMany && strikes(mix.lag) {
			f.Behind = 1 + o.rng.IntN(6)
			o.noteLocked("%s: %s from a replica that is %d writes behind", m.who(), op, f.Behind)
		}
		if m == nil || !o.alive[m] {
			return f
		}
		switch {
		case strikes(mix.kill):
			o.noteLocked("%s is killed at %s", m.name, op)
			m.handle.Kill()
			o.leaveLocked(m, most(lease*2))
		case strikes(mix.stop):
			o.noteLocked("%s is told to stop at %s", m.name, op)
			o.leaveLocked(m, most(lease))
		case strikes(mix.freeze):
			d := most(lease * 3)
			o.noteLocked("%s is frozen for %v at %s", m.name, d, op)
			m.handle.Freeze()
			time.AfterFunc(d, func() { o.note("%s is thawed", m.name); m.handle.Thaw() })
		case strikes(mix.cut):
			d, lose := most(lease*2), o.rng.IntN(2) == 0
			o.noteLocked("%s is cut off for %v at %s, what it sent is lost: %v", m.name, d, op, lose)
			m.handle.Cut(lose)
			time.AfterFunc(d, func() { o.note("%s is connected again", m.name); m.handle.Heal() })
		}
		return f
	}
}

func (m *member) who() string {
	if m == nil {
		return "producer"
	}
	return m.name
}

// act is the handler of every kind: it makes progress in random steps, and ends
// in one of the ways in which handlers end.
func (m *member) act(ctx context.Context, c *Claim) (Result, error) {
	o := m.o
	a := m.begin(c, false)
	if a == nil {
		return Result{}, errGhost
	}
	defer func() { o.note("%s: %s ends: %v", m.name, a.label(), context.Cause(ctx)) }()
	for range o.draw(5) {
		if pipeline.Sleep(ctx, o.while(o.settings.Lease/2)) != nil {
			return Result{}, fmt.Errorf("%s: %w", a.label(), context.Cause(ctx))
		}
		offset := c.Offset() + uint64(o.draw(3))
		if err := c.Progress(ctx, offset, []byte(a.label())); err != nil {
			o.note("%s: progress of %s: %v", m.name, a.label(), err)
			if o.draw(4) > 0 {
				return Result{}, fmt.Errorf("%s: %w", a.label(), err)
			}
		} else if !m.handle.Dead() {
			o.mu.Lock()
			a.saved = append(a.saved, offset)
			o.mu.Unlock()
		}
	}
	failed := fmt.Errorf("%s failed", a.label())
	if c.Kind() == "risky" || c.Kind() == "blind" {
		token, err := c.Prepare(ctx, []byte(a.label()))
		if err != nil {
			return Result{}, fmt.Errorf("%s: prepare: %w", a.label(), err)
		}
		if pipeline.Sleep(ctx, o.while(o.settings.Lease)) != nil && o.draw(2) == 0 {
			return Result{}, fmt.Errorf("%s: %w", a.label(), context.Cause(ctx))
		}
		if o.draw(4) > 0 && !m.handle.Dead() {
			o.note("%s: effect of %s: %v", m.name, a.label(), o.world.effect(a.id, token, a.label()))
		}
	}
	switch o.draw(24) {
	case 0, 1, 2:
		return Result{}, failed
	case 3:
		return Result{}, Reject(failed)
	case 4:
		delay := o.while(time.Second)
		o.mu.Lock()
		a.delay = delay
		o.mu.Unlock()
		return Result{}, RetryAfter(delay, failed)
	case 5:
		return Result{}, Uncertain(failed)
	case 6:
		panic(a.label() + " panics")
	case 7: // hangs, and does not listen
		time.Sleep(o.while(o.settings.Lease * 3))
	case 8, 9: // takes longer than its lease
		if pipeline.Sleep(ctx, o.settings.Lease+o.while(o.settings.Lease)) != nil {
			return Result{}, fmt.Errorf("%s: %w", a.label(), context.Cause(ctx))
		}
	case 10, 11, 12:
		if !strings.Contains(a.id, "/") {
			for range 1 + o.draw(2) {
				if err := c.FollowUp(Command{Kind: "plain", Queue: command.DefaultQueue}); err != nil {
					return Result{}, err
				}
			}
		}
	}
	return Result{Body: []byte(a.label())}, nil
}

// begin notes a call of a handler, or of a Confirm. It returns nil if the
// process was killed, and its goroutines only have not noticed yet.
func (m *member) begin(c *Claim, confirms bool) *act {
	if m.handle.Dead() {
		return nil
	}
	o := m.o
	o.mu.Lock()
	defer o.mu.Unlock()
	a := &act{n: len(o.acts), id: c.ID(), by: m, confirms: confirms, attempt: c.Attempt(), token: c.Token(), offset: c.Offset(), checkpoint: string(c.Checkpoint()), at: time.Now()}
	o.acts = append(o.acts, a)
	o.noteLocked("%s: %s begins %s, confirms %v, attempt %d, token %d, offset %d %s", m.name, a.label(), a.id, confirms, a.attempt, a.token, a.offset, a.checkpoint)
	return a
}

// confirm looks into the world for what became of an effect.
func (m *member) confirm(ctx context.Context, c *Claim, intent []byte) (Finding, Result, error) {
	a := m.begin(c, true)
	if a == nil {
		return Unknown, Result{}, errGhost
	}
	if pipeline.Sleep(ctx, m.o.while(m.o.settings.Lease)) != nil {
		return Unknown, Result{}, fmt.Errorf("%s: %w", a.label(), context.Cause(ctx))
	}
	switch m.o.draw(8) {
	case 0:
		return Unknown, Result{}, fmt.Errorf("%s failed", a.label())
	case 1:
		return Unknown, Result{}, nil
	}
	happened := m.o.world.look(a.id, c.Token())
	m.o.note("%s: %s finds that the effect of %s happened: %v", m.name, a.label(), intent, happened)
	if happened {
		return Done, Result{Body: []byte(a.label())}, nil
	}
	return NotDone, Result{}, nil
}

// world is an outside system that takes effects and knows fencing tokens: it
// refuses who comes with a smaller one than it has seen.
type world struct {
	mu      sync.Mutex
	fence   map[string]uint64
	effects map[string][]string // by id: labels of the acts that caused them
}

func (w *world) passesLocked(id string, token uint64) bool {
	if w.fence == nil {
		w.fence, w.effects = map[string]uint64{}, map[string][]string{}
	}
	if token < w.fence[id] {
		return false
	}
	w.fence[id] = token
	return true
}

// effect happens, and happens again if it is caused again.
func (w *world) effect(id string, token uint64, label string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.passesLocked(id, token) {
		return false
	}
	w.effects[id] = append(w.effects[id], label)
	return true
}

// look reports whether an effect has happened. From then on, holders of smaller
// tokens can cause none.
func (w *world) look(id string, token uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passesLocked(id, token)
	return len(w.effects[id]) > 0
}

var errGhost = Uncertain(fmt.Errorf("the process of this handler was killed"))
