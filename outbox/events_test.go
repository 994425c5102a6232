package outbox_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/outbox"
)

func TestCommitDecision(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		ctx := t.Context()
		decide := func(run string, expected uint64, events []outbox.Event, commands ...outbox.Command) error {
			return db.within(ctx, func(tx outbox.Tx) error { return outbox.CommitDecision(ctx, tx, run, expected, events, commands) })
		}
		if err := decide("trip-7", 0, []outbox.Event{{Kind: "opened"}, {Kind: "paying", Data: []byte("{}"), CommandID: "pay-7"}, {Kind: "noted"}},
			outbox.Command{ID: "pay-7", Kind: "pay"}, outbox.Command{ID: "mail-7", Kind: "mail"}); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]int{"pay-7": 2, "mail-7": 3} {
			if got := db.count(t, `SELECT event_seq FROM tallyman_outbox WHERE id = $1 AND run_id = 'trip-7'`, id); got != want {
				t.Errorf("%s is traced to event %d, want %d", id, got, want)
			}
		}
		if err := decide("trip-7", 3, []outbox.Event{{Kind: "paid"}}); err != nil {
			t.Fatal(err)
		}
		before := db.count(t, `SELECT count(*) FROM tallyman_events`) + db.count(t, `SELECT count(*) FROM tallyman_outbox`)
		one := []outbox.Event{{Kind: "k"}}
		for _, c := range []struct {
			name     string
			run      string
			expected uint64
			events   []outbox.Event
			commands []outbox.Command
			want     error
		}{
			{"based on old events", "trip-7", 3, one, nil, outbox.ErrStale},
			{"based on events that do not exist", "trip-7", 5, one, nil, outbox.ErrStale},
			{"no run", "", 0, one, nil, tallyman.ErrInvalidName},
			{"no event", "trip-8", 0, nil, []outbox.Command{{ID: "x", Kind: "k"}}, tallyman.ErrInvalidName},
			{"an event that needs a stranger", "trip-8", 0, []outbox.Event{{Kind: "k", CommandID: "stranger"}}, nil, tallyman.ErrInvalidID},
			{"two events that need one command", "trip-8", 0, []outbox.Event{{Kind: "k", CommandID: "x"}, {Kind: "k", CommandID: "x"}}, []outbox.Command{{ID: "x", Kind: "k"}}, tallyman.ErrConflict},
			{"a command twice", "trip-8", 0, one, []outbox.Command{{ID: "x", Kind: "k"}, {ID: "x", Kind: "k"}}, tallyman.ErrConflict},
			{"a command that is another's", "trip-8", 0, one, []outbox.Command{{ID: "pay-7", Kind: "other"}}, tallyman.ErrConflict},
			{"a command that is invalid", "trip-8", 0, one, []outbox.Command{{ID: "x", Kind: "k k"}}, tallyman.ErrInvalidName},
		} {
			if err := decide(c.run, c.expected, c.events, c.commands...); !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
		}
		if after := db.count(t, `SELECT count(*) FROM tallyman_events`) + db.count(t, `SELECT count(*) FROM tallyman_outbox`); after != before {
			t.Errorf("refused decisions left %d rows", after-before)
		}
	})
}

// Of those who decide on the same events one wins, and the others learn it;
// the winner's events and commands belong together.
func TestCommitDecision_Concurrently(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		const rounds, writers = 5, 6
		for round := range uint64(rounds) {
			var group sync.WaitGroup
			outcomes := make(chan error, writers)
			for w := range writers {
				group.Go(func() {
					id := fmt.Sprintf("r%d-w%d", round, w)
					outcomes <- db.within(t.Context(), func(tx outbox.Tx) error {
						return outbox.CommitDecision(t.Context(), tx, "run", round, []outbox.Event{{Kind: "k", CommandID: id}}, []outbox.Command{{ID: id, Kind: "k"}})
					})
				})
			}
			group.Wait()
			won := 0
			for range writers {
				if err := <-outcomes; err == nil {
					won++
				} else if !errors.Is(err, outbox.ErrStale) {
					t.Error(err)
				}
			}
			if won != 1 {
				t.Errorf("round %d: %d decisions were committed, want 1", round, won)
			}
		}
		if got := db.count(t, `SELECT count(*) FROM tallyman_events e JOIN tallyman_outbox o ON o.id = e.command_id AND o.run_id = e.run_id AND o.event_seq = e.seq`); got != rounds {
			t.Errorf("%d events have their command, want %d", got, rounds)
		}
		if got := db.count(t, `SELECT count(*) FROM tallyman_outbox`); got != rounds {
			t.Errorf("%d commands, want %d", got, rounds)
		}
	})
}
