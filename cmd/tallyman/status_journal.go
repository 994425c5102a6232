package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/journal"
)

// journalTime bounds what status asks about a journal.
const journalTime = 10 * time.Second

// journalView is what status tells of a pool's journal.
type journalView struct {
	Name      string `json:"name"`
	Decisions uint64 `json:"decisions"`
	// Unpublished counts the decisions that no relay has confirmed, and Age is
	// how long ago the oldest of them was stored.
	Unpublished uint64 `json:"unpublished"`
	Age         string `json:"oldest_age,omitempty"`
	// Error says why nothing is known; whether there is a journal may not be either.
	Error string `json:"error,omitempty"`
}

// journalOf looks at the pool's journal, nil if it has none. That it cannot be
// told is part of the view, so that it does not hide the rest.
func journalOf(ctx context.Context, nc *nats.Conn, pool *tallyman.Pool) *journalView {
	ctx, cancel := context.WithTimeout(ctx, journalTime)
	defer cancel()
	v := &journalView{Name: journal.Name(pool.Name())}
	j, err := journal.Open(ctx, nc, pool, journal.Options{})
	if errors.Is(err, journal.ErrNoJournal) {
		return nil
	}
	if err == nil {
		defer func() { _ = j.Close() }() // never fails
		var s journal.Status
		if s, err = j.Status(ctx); err == nil {
			v.Decisions, v.Unpublished = s.Decisions, s.Unpublished
			if s.OldestAge > 0 {
				v.Age = s.OldestAge.Round(time.Millisecond).String()
			}
			return v
		}
	}
	if denied := context.Cause(ctx); errors.Is(denied, tallyman.ErrDenied) {
		err = denied
	}
	v.Error = cli.Text(err)
	return v
}

func (v *journalView) String() string {
	if v.Error != "" {
		return v.Name + ": not known: " + v.Error
	}
	text := fmt.Sprintf("%s: %s, %d not relayed yet", v.Name, plural.Count(v.Decisions, "decision"), v.Unpublished)
	if v.Age != "" {
		text += ", the oldest for " + v.Age
	}
	return text
}
