package outbox_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/outbox"
)

func TestAdd(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		ctx := t.Context()
		t.Run("an error in the middle of the transaction leaves neither facts nor commands", func(t *testing.T) {
			boom := errors.New("boom")
			err := db.within(ctx, func(tx outbox.Tx) error {
				if err := outbox.CommitDecision(ctx, tx, "trip-9", 0,
					[]outbox.Event{{Kind: "booked", CommandID: "pay-9"}}, []outbox.Command{{ID: "pay-9", Kind: "pay"}}); err != nil {
					return err
				}
				if err := outbox.Add(ctx, tx, outbox.Command{ID: "mail-9", Kind: "mail"}); err != nil {
					return err
				}
				return boom
			})
			if !errors.Is(err, boom) {
				t.Fatal(err)
			}
			if rows, events := db.count(t, `SELECT count(*) FROM tallyman_outbox`), db.count(t, `SELECT count(*) FROM tallyman_events`); rows != 0 || events != 0 {
				t.Errorf("%d rows and %d events are left, want none", rows, events)
			}
		})
		t.Run("absorbs what is equal, and refuses what is not", func(t *testing.T) {
			first := outbox.Command{ID: "a b/ü.*", Kind: "pay", Payload: []byte("1")}
			db.add(t, first)
			again := first
			again.Queue, again.ContentType, again.OrderKey, again.NotBefore = "default", "text/plain", "k", time.Now()
			db.add(t, first, again, first)
			if got := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE id = $1`, first.ID); got != 1 {
				t.Errorf("%d rows have the id, want 1", got)
			}
			for name, change := range map[string]func(*outbox.Command){
				"payload": func(c *outbox.Command) { c.Payload = []byte("2") },
				"kind":    func(c *outbox.Command) { c.Kind = "refund" },
				"queue":   func(c *outbox.Command) { c.Queue = "other" },
			} {
				c := first
				change(&c)
				// The one that is new must not stay either.
				fresh := outbox.Command{ID: "fresh-" + name, Kind: "pay"}
				err := db.within(ctx, func(tx outbox.Tx) error { return outbox.Add(ctx, tx, fresh, c) })
				if !errors.Is(err, tallyman.ErrConflict) || !strings.Contains(err.Error(), first.ID) || !strings.Contains(err.Error(), name) {
					t.Errorf("another %s: got %v, want ErrConflict that names the id and the difference", name, err)
				}
				if got := db.count(t, `SELECT count(*) FROM tallyman_outbox WHERE id = $1`, fresh.ID); got != 0 {
					t.Errorf("another %s: the command beside it stayed", name)
				}
			}
			twice := []outbox.Command{{ID: "twice", Kind: "pay", Payload: []byte("1")}, {ID: "twice", Kind: "pay", Payload: []byte("2")}}
			if err := db.within(ctx, func(tx outbox.Tx) error { return outbox.Add(ctx, tx, twice...) }); !errors.Is(err, tallyman.ErrConflict) {
				t.Errorf("two payloads in one call: got %v, want ErrConflict", err)
			}
		})
		t.Run("refuses at once what the pool would refuse", func(t *testing.T) {
			before := db.count(t, `SELECT count(*) FROM tallyman_outbox`)
			for _, c := range []struct {
				command outbox.Command
				want    error
			}{
				{outbox.Command{Kind: "pay"}, tallyman.ErrInvalidID},
				{outbox.Command{ID: strings.Repeat("x", 257), Kind: "pay"}, tallyman.ErrInvalidID},
				{outbox.Command{ID: "a\x00b", Kind: "pay"}, tallyman.ErrInvalidID},
				{outbox.Command{ID: "a\xff", Kind: "pay"}, tallyman.ErrInvalidID},
				{outbox.Command{ID: "a"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "p.y"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "pay", Queue: ">"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "pay", ContentType: "a\r\nb"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "pay", ContentType: "a\x00b"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "pay", OrderKey: "\xff"}, tallyman.ErrInvalidName},
				{outbox.Command{ID: "a", Kind: "pay", OrderKey: strings.Repeat("x", 257)}, tallyman.ErrInvalidName},
			} {
				err := db.within(ctx, func(tx outbox.Tx) error {
					return outbox.Add(ctx, tx, outbox.Command{ID: "beside", Kind: "pay"}, c.command)
				})
				if !errors.Is(err, c.want) {
					t.Errorf("%+v: got %v, want %v", c.command, err, c.want)
				}
			}
			if got := db.count(t, `SELECT count(*) FROM tallyman_outbox`); got != before {
				t.Errorf("%d rows were added, want none", got-before)
			}
		})
	})
}

func TestAdd_CarriesEverything(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		limit := time.Now().Add(time.Hour).Round(time.Microsecond)
		want := map[string]outbox.Command{}
		var commands []outbox.Command
		add := func(c outbox.Command) {
			c.Kind = "pay"
			want[c.ID] = c
			commands = append(commands, c)
		}
		// Ids as people choose them, composed and decomposed accents among them.
		for _, id := range []string{"a b", "a.b", "*", ">", "..", "a:b", "123", "😀", "\u00e9", "e\u0301", "_a", "=", "-", "'; DROP TABLE x; --", "$1", strings.Repeat("ü", 128), "a."} {
			add(outbox.Command{ID: id, Payload: []byte(id)})
		}
		add(outbox.Command{ID: "empty"})
		add(outbox.Command{ID: "binary", Payload: []byte{0, 1, 255, 0}})
		add(outbox.Command{ID: "all", Queue: "q", ContentType: "application/json", NotAfter: limit, OrderKey: "k", Payload: []byte("{}")})
		for i := range 700 { // more than two statements' worth
			add(outbox.Command{ID: fmt.Sprint("n", i), Payload: bytes.Repeat([]byte{byte(i)}, i)})
		}
		db.add(t, commands...)
		p := newPool()
		r := db.start(t, p)
		eventually(t, "all to be published", func() bool { return db.in(t, "published") == len(want) })
		r.stop(t)
		for id, w := range want {
			got := p.commands[id]
			if w.Queue == "" {
				w.Queue = "default"
			}
			if got.ID != id || got.Kind != w.Kind || got.Queue != w.Queue || got.ContentType != w.ContentType || !bytes.Equal(got.Payload, w.Payload) || !got.NotAfter.Equal(w.NotAfter) {
				t.Errorf("%q: got %+v, want %+v", id, got, w)
			}
		}
		if len(p.accepted) != len(want) || p.absorbed != 0 {
			t.Errorf("%d accepted and %d absorbed, want %d and 0", len(p.accepted), p.absorbed, len(want))
		}
		if got := r.Stats(); got.Published != int64(len(want)) || got.Failed != 0 || got.TakenOver != 0 || got.Refused != 0 {
			t.Errorf("stats %+v", got)
		}
	})
}

// Two transactions that add the same id meet: the second one waits for the
// first, and is absorbed or refused.
func TestAdd_Concurrently(t *testing.T) {
	t.Parallel()
	everywhere(t, func(db *database) {
		t := db.t
		const each = 40
		outcomes := make(chan error, 2*each)
		for i := range each {
			for _, payload := range []string{"1", "2"} {
				c := outbox.Command{ID: fmt.Sprint("c", i), Kind: "pay", Payload: []byte(payload)}
				if i%2 == 0 {
					c.Payload = []byte("same")
				}
				go func() {
					outcomes <- db.within(t.Context(), func(tx outbox.Tx) error { return outbox.Add(t.Context(), tx, c) })
				}()
			}
		}
		conflicts := 0
		for range 2 * each {
			if err := <-outcomes; errors.Is(err, tallyman.ErrConflict) {
				conflicts++
			} else if err != nil {
				t.Error(err)
			}
		}
		if rows := db.count(t, `SELECT count(*) FROM tallyman_outbox`); rows != each || conflicts != each/2 {
			t.Errorf("%d rows and %d conflicts, want %d and %d", rows, conflicts, each, each/2)
		}
	})
}
