package tallyman

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// waitPoll is how often Wait looks at the record when nothing has hinted at a
// change. It only matters while a connection is being replaced.
const waitPoll = time.Second

// Wait returns the receipt of a command once it has one. It survives lost
// connections and restarted servers. If the command was parked, cancelled or
// discarded, the receipt comes with ErrParked or ErrCancelled. It does not ask
// whether the command was ever submitted: bound it with ctx. Further errors: that
// of ctx, ErrInvalidID, ErrDenied, and ErrMalformed if the record is damaged.
//
// It is safe for concurrent use; each call holds one subscription.
func (p *Pool) Wait(ctx context.Context, id string) (Receipt, error) {
	token, err := dedupe.Token(id)
	if err != nil {
		return Receipt{}, fmt.Errorf("tallyman: wait: %w", err)
	}
	home := p.of(token)
	// Writes to the record pass by here before they are stored. They are but a
	// hint to look: only the stored record counts.
	hints := make(chan *nats.Msg, 64)
	sub, err := p.nc.ChanSubscribe(home.bucket.Subject(token), hints)
	if err != nil {
		return Receipt{}, fmt.Errorf("tallyman: wait for %q: %w", id, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	// The subscription must be in force before the first look.
	flush, cancel := pipeline.Within(ctx, askTime) // nats.go asks for a deadline
	err = p.nc.FlushWithContext(flush)
	cancel()
	if err != nil && ctx.Err() != nil {
		return Receipt{}, fmt.Errorf("tallyman: wait for %q: %w", id, context.Cause(ctx))
	}
	again := time.NewTimer(0) // looks at once
	defer again.Stop()
	hurry := 0 // looks still to be made in quick succession after a hint
	for {
		select {
		case <-ctx.Done():
			return Receipt{}, fmt.Errorf("tallyman: wait for %q: %w", id, context.Cause(ctx))
		case <-hints:
			hurry = 8
			again.Reset(0)
			continue
		case <-again.C:
		}
		e, err := home.records.Read(ctx, token)
		switch {
		case err != nil && errors.Is(err, kvstate.ErrDenied):
			return Receipt{}, fmt.Errorf("tallyman: wait for %q: %w", id, translate(err))
		case err != nil: // away; look again
		case e.Err != nil:
			return Receipt{}, fmt.Errorf("tallyman: wait for %q: its record is damaged: %w; see tallyman show", id, e.Err)
		case e.Record != nil && e.Record.State.Terminal():
			return outcome(e.Record)
		}
		pause := waitPoll
		if hurry > 0 {
			// The hint came before the write was stored: 0.1, 0.2, ... 12.8 ms.
			pause = 100 * time.Microsecond << (8 - hurry)
			hurry--
		}
		again.Reset(pause)
	}
}

func outcome(r *kvstate.Record) (Receipt, error) {
	receipt := receiptOf(r)
	switch r.State {
	case kvstate.Parked:
		return receipt, fmt.Errorf("tallyman: command %q is %w as %s: %s", r.ID, ErrParked, r.Reason, r.Error)
	case kvstate.Cancelled, kvstate.Discarded:
		return receipt, fmt.Errorf("tallyman: command %q was %s: %w", r.ID, r.State, ErrCancelled)
	}
	return receipt, nil
}

// Receipt returns the receipt of a command, or ErrNotFound if it has none yet.
// It does not wait. Further errors are those of Find.
func (p *Pool) Receipt(ctx context.Context, id string) (Receipt, error) {
	r, err := p.Find(ctx, id)
	if err != nil {
		return Receipt{}, err
	}
	if !r.State.Terminal() {
		return Receipt{}, fmt.Errorf("tallyman: command %q is %s: receipt %w", id, r.State, ErrNotFound)
	}
	return receiptOf(r), nil
}
