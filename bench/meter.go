package main

import (
	"context"
	"errors"
	"time"
)

// meter measures what workers do on a field, and what that costs them and the
// server.
type meter struct {
	f       *field
	db      string // of a relay
	workers []*process
	before  []report // of each worker
	server  report
	start   time.Time // before the first worker's process was started
	began   time.Time // when the first worker began to work
}

// begin starts so many workers and lets them work along a path, or straight on.
func (m *meter) begin(ctx context.Context, workers int, path string) (err error) {
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	m.start = time.Now()
	for range workers {
		w, err := startProcess(ctx, order{
			Role: "work", URL: m.f.server.ready.URL, Contestant: m.f.contestant.Name(), Path: path, DB: m.db, Profile: m.f.profiles("work"),
		})
		if err != nil {
			return err
		}
		m.workers = append(m.workers, w)
	}
	if m.server, err = m.f.server.ask(ctx, "usage"); err != nil {
		return err
	}
	for _, w := range m.workers {
		r, err := w.ask(ctx, "go")
		if err != nil {
			return err
		}
		m.before = append(m.before, r)
	}
	m.began = m.before[0].Start
	return nil
}

// lookInterval is how often a meter looks whether a long stretch of work is
// done. It errs by that much, and each look costs the server up to 0.1 ms.
const lookInterval = 20 * time.Millisecond

// until looks again and again whether something is reached, and returns when that
// was. It fails when a worker does.
func (m *meter) until(ctx context.Context, every time.Duration, reached func() (bool, error)) (time.Time, error) {
	return until(ctx, every, m.workers, reached)
}

func until(ctx context.Context, every time.Duration, workers []*process, reached func() (bool, error)) (time.Time, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, context.Cause(ctx)
		case <-tick.C:
		}
		for _, w := range workers {
			select {
			case r, ok := <-w.reports:
				return time.Time{}, errors.Join(w.check(r, ok), errors.New("the worker spoke before it was asked"))
			default:
			}
		}
		if done, err := reached(); err != nil {
			return time.Time{}, errors.Join(err, context.Cause(ctx))
		} else if done {
			return time.Now(), nil
		}
	}
}

// end asks everyone what they have used for n things that were done by end,
// and stops the workers. Where they go on meanwhile, done tells how far they
// have got.
func (m *meter) end(ctx context.Context, n int, end time.Time, done func() (int, error), s sample) error {
	s["rate"] = perSecond(n, end.Sub(m.began))
	after, err := m.f.server.ask(ctx, "usage")
	if err != nil {
		return err
	}
	if done != nil {
		if n, err = done(); err != nil {
			return err
		}
	}
	s["server_cpu"] = cpuPer10k(m.server, after, n)
	s["server_peak"] = float64(after.Peak) / (1 << 20)
	for i, w := range m.workers {
		after, err := w.ask(ctx, "usage")
		if err != nil {
			return err
		}
		s["worker_cpu"] += cpuPer10k(m.before[i], after, n)
		s["statements"] += float64(after.Traffic.SQL-m.before[i].Traffic.SQL) / float64(n)
		s["worker_peak"] = max(s["worker_peak"], float64(after.Peak)/(1<<20))
	}
	for _, w := range m.workers {
		if _, err := w.ask(ctx, "stop"); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) close() {
	for _, w := range m.workers {
		w.close()
	}
}
