package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tallyman-go/tallyman"
)

// The books of every contestant must tell the waiting from the completed: else
// a scenario would end too early, and nobody would notice what was lost.
func TestBooks(t *testing.T) {
	t.Parallel()
	all := make(map[string]Contestant)
	for _, c := range contestants() {
		all[c.Name()] = c
	}
	for _, c := range powerSafe() {
		c, err := layout{sync: true}.on(c)
		if err != nil {
			t.Fatal(err)
		}
		all[c.Name()+" that flushes"] = c
	}
	all["tallyman with shards"] = onJetStream{natsContestant: ours{}, layout: layout{pool: tallyman.Settings{Shards: 3}}}
	all["tallyman that sweeps"] = onJetStream{natsContestant: ours{}, layout: layout{sync: true, pool: tallyman.Settings{
		Shards: 2, Removal: tallyman.RemovalSweep, Commit: tallyman.CommitGroup,
	}}}
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needs(t, c)
			const n = 20
			f, err := openField(t.Context(), c, func(string) string { return "" })
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			if err := f.books.Time(t.Context()); err != nil {
				t.Fatal(err)
			}
			commands := slices.Collect(commandsOf(n, 0))
			if err := c.Produce(t.Context(), f.server.ready.URL, slices.Values(commands)); err != nil {
				t.Fatal(err)
			}
			if _, done, err := f.books.Settled(t.Context(), n); err != nil || done {
				t.Errorf("settled before any work = %t, %v, want false", done, err)
			}
			if _, err := f.completions(t.Context(), n); err == nil {
				t.Errorf("%d completions before any work, want an error", n)
			}

			worker, err := f.start(t.Context(), "work", 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer worker.close()
			if _, err := worker.ask(t.Context(), "go"); err != nil {
				t.Fatal(err)
			}
			if _, err := f.settled(t.Context(), n, worker); err != nil {
				t.Fatal(err)
			}
			got, err := f.completions(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range commands {
				submitted, err := submittedAt(command.ID)
				if err != nil {
					t.Fatal(err)
				}
				at, completed := got[command.ID]
				if !completed || !at.After(submitted) {
					t.Errorf("%s was completed at %v, want a time after %v", command.ID, at, submitted)
				}
			}
			if err := f.swept(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := worker.ask(t.Context(), "stop"); err != nil {
				t.Error(err)
			}
			if _, err := f.completions(t.Context(), n+1); err == nil {
				t.Errorf("%d commands made %d completions, want an error", n, n+1)
			}
		})
	}
}

func TestInBatches(t *testing.T) {
	t.Parallel()
	t.Run("every command comes once, in order, and no batch is too long", func(t *testing.T) {
		t.Parallel()
		commands := slices.Collect(commandsOf(1000, 0))
		var got []string
		if err := inBatches(t.Context(), slices.Values(commands), 7, func(batch []Command) error {
			if len(batch) == 0 || len(batch) > 7 {
				return fmt.Errorf("a batch has %d commands, want 1 to 7", len(batch))
			}
			for _, c := range batch {
				got = append(got, c.ID)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, c := range commands {
			want = append(want, c.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %d commands, want the %d that were given", len(got), len(want))
		}
	})
	t.Run("the first error ends it", func(t *testing.T) {
		t.Parallel()
		want := errors.New("enough")
		if got := inBatches(t.Context(), commandsOf(1000, 0), 7, func([]Command) error { return want }); !errors.Is(got, want) {
			t.Errorf("inBatches = %v, want %v", got, want)
		}
	})
}

func TestInParallel(t *testing.T) {
	t.Parallel()
	want := errors.New("enough")
	if got := inParallel(t.Context(), commandsOf(1000, 0), 7, func(Command) error { return want }); !errors.Is(got, want) {
		t.Errorf("inParallel = %v, want %v", got, want)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(want)
	if got := inParallel(ctx, commandsOf(1000, 0), 7, func(Command) error { return nil }); !errors.Is(got, want) {
		t.Errorf("inParallel after its context = %v, want %v", got, want)
	}
}
