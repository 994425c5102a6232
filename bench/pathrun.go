package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
)

// measurePath lets a worker take commands along a path, once all of them are
// submitted and nothing else runs.
func measurePath(ctx context.Context, l load, p path, c onJetStream, s sample) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTimeout, fmt.Errorf("not done after %v", scenarioTimeout))
	defer cancel()
	n := max(1, l.N/p.per)
	c.layout = p.layout(c.layout, l.Quick)
	f, err := openField(ctx, c, l.profiles(scenario{name: p.name}, c))
	if err != nil {
		return report{}, err
	}
	defer f.close()
	b, err := f.streams()
	if err != nil {
		return report{}, err
	}
	if p.name == relayPath {
		return measureRelay(ctx, f, b, n, s)
	}
	if err := submit(ctx, f, load{N: n}, sample{}); err != nil {
		return report{}, err
	}
	if p.held {
		if err := hold(ctx, f, b, p, n, c.layout.lease); err != nil {
			return report{}, err
		}
	}
	commands, err := b.commands(ctx)
	if err != nil {
		return report{}, err
	}
	entries, err := b.entries(ctx)
	if err != nil {
		return report{}, err
	}
	m := &meter{f: f}
	if err := m.begin(ctx, 1, p.name); err != nil {
		return report{}, err
	}
	defer m.close()
	want := commands.LastSeq + uint64(n*p.born)
	every := lookInterval
	if l.Quick {
		every = pollInterval
	}
	end, err := m.until(ctx, every, func() (bool, error) {
		commands, err := b.commands(ctx)
		if err != nil || commands.LastSeq < want {
			return false, err
		}
		left, err := b.outstanding(ctx)
		return left == uint64(n*p.born), err
	})
	if err != nil {
		return report{}, err
	}
	if err := b.swept(ctx, uint64(n*p.born)); err != nil {
		return report{}, err
	}
	if err := m.end(ctx, n*p.per, end, nil, s); err != nil {
		return report{}, err
	}
	after, err := b.entries(ctx)
	if err != nil {
		return report{}, err
	}
	s["writes"] = float64(after.LastSeq-entries.LastSeq) / float64(n)
	if s["writes"] < float64(p.writes) {
		return report{}, fmt.Errorf("%d commands wrote %d entries, want %d for each", n, after.LastSeq-entries.LastSeq, p.writes)
	}
	return f.described(), b.ended(ctx, n, p)
}

// measureRelay lets a relay carry n rows of a database to the command stream,
// where nobody works on them.
func measureRelay(ctx context.Context, f *field, b *streamBooks, n int, s sample) (report, error) {
	file := filepath.Join(f.dir, "app.db")
	if err := fillOutbox(ctx, file, n); err != nil {
		return report{}, fmt.Errorf("fill the outbox: %w", err)
	}
	db, err := openCounted(file)
	if err != nil {
		return report{}, err
	}
	defer db.Close()
	m := &meter{f: f, db: file}
	if err := m.begin(ctx, 1, relayPath); err != nil {
		return report{}, err
	}
	defer m.close()
	end, err := m.until(ctx, lookInterval, func() (bool, error) {
		commands, err := b.commands(ctx)
		if err != nil || commands.LastSeq < uint64(n) {
			return false, err
		}
		left, err := unpublished(ctx, db)
		return left == 0, err
	})
	if err != nil {
		return report{}, err
	}
	if err := m.end(ctx, n, end, nil, s); err != nil {
		return report{}, err
	}
	s["writes"] = 0 // of entries
	if commands, err := b.commands(ctx); err != nil || commands.LastSeq != uint64(n) || commands.NumSubjects != uint64(n) {
		return report{}, fmt.Errorf("%d rows made %d commands, want one for each: %w", n, commands.LastSeq, err)
	}
	return f.described(), nil
}

// hold lets a worker claim n commands, kills it, and returns when their leases
// have run out.
func hold(ctx context.Context, f *field, b *streamBooks, p path, n int, lease time.Duration) error {
	holder, err := startProcess(ctx, order{
		Role: "hold", URL: f.server.ready.URL, Contestant: f.contestant.Name(), N: n, Path: p.name,
	})
	if err != nil {
		return err
	}
	defer holder.close()
	if _, err := holder.ask(ctx, "go"); err != nil {
		return err
	}
	if _, err := until(ctx, lookInterval, []*process{holder}, func() (bool, error) {
		entries, err := b.entries(ctx)
		return entries.NumSubjects >= b.before+uint64(n), err
	}); err != nil {
		return err
	}
	if err := holder.kill(); err != nil {
		return err
	}
	select {
	case <-time.After(lease + 500*time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended fails unless n commands have an entry, each with the state in which
// the path ends. An entry of the bound says nothing of a state.
func (b *streamBooks) ended(ctx context.Context, n int, p path) error {
	states := make(map[string]string, n)
	if err := b.each(ctx, true, func(entry jetstream.Msg, _ time.Time) error {
		if key := keyOf(entry.Subject()); !strings.HasPrefix(key, "_") {
			states[key] = entry.Headers().Get(command.HeaderState)
		}
		return nil
	}); err != nil {
		return err
	}
	if len(states) != n {
		return fmt.Errorf("%d commands have %d entries", n, len(states))
	}
	for key, state := range states {
		if state != "" && state != p.ends {
			return fmt.Errorf("%s is %s in the end, want %s", key, state, p.ends)
		}
	}
	return nil
}

// streams are the books of a contestant on JetStream.
func (f *field) streams() (*streamBooks, error) {
	b, ok := f.books.(*streamBooks)
	if !ok {
		return nil, errors.New("only contestants with a command stream and a bucket can be measured so")
	}
	return b, nil
}

// pathRow is what one path made with both contestants.
type pathRow struct {
	Path   string `json:"path"`
	Counts string `json:"counts"`
	pair
}

// pathResults is everything that --paths --json prints.
type pathResults struct {
	conditions
	Rows []pathRow `json:"rows"`
}

func measurePaths(ctx context.Context, l load, with layout, progress func(string)) (pathResults, error) {
	out := pathResults{conditions: newConditions(l, with)}
	for _, p := range paths() {
		if l.Scenario != "" && l.Scenario != p.name {
			continue
		}
		out.Rows = append(out.Rows, pathRow{Path: p.name, Counts: p.counts, pair: pair{
			title:   p.name,
			measure: func(c onJetStream, s sample) (report, error) { return measurePath(ctx, l, p, c, s) },
		}})
	}
	err := out.measurePairs(l, with, len(out.Rows), func(i int) *pair { return &out.Rows[i].pair }, progress)
	return out, err
}
