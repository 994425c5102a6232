package tallyman

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// statesBatch is how many records States reads in one request.
const statesBatch = 256

// States tells where each of the given commands stands, in the same order,
// with one request for many of them. A command that no worker has written about
// yet, or that the pool does not know, has the empty state.
//
// A state that is final is durable and stays; any other is a hint, since a
// replica that lags may have answered. ErrInvalidID if an id is none.
func (p *Pool) States(ctx context.Context, ids []string) ([]State, error) {
	states := make([]State, 0, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), statesBatch)
		part, err := p.states(ctx, ids[:n])
		if err != nil {
			return nil, fmt.Errorf("tallyman: states of %d commands: %w", n, err)
		}
		states, ids = append(states, part...), ids[n:]
	}
	return states, nil
}

func (p *Pool) states(ctx context.Context, ids []string) ([]State, error) {
	keys := make([]command.Token, len(ids))
	for i, id := range ids {
		token, err := dedupe.Token(id)
		if err != nil {
			return nil, err
		}
		keys[i] = token
	}
	type answer struct {
		entries []kvstate.Entry
		err     error
	}
	answers := make(chan answer, 1)
	if err := p.records.ReadMany(keys, func(entries []kvstate.Entry, err error) { answers <- answer{entries, err} }); err != nil {
		return nil, translate(err)
	}
	select {
	case a := <-answers:
		if a.err != nil {
			return nil, translate(a.err)
		}
		states := make([]State, len(ids))
		for i, e := range a.entries {
			if e.Err != nil {
				return nil, fmt.Errorf("the record of %q is damaged: %w; see tallyman show", ids[i], e.Err)
			}
			if e.Record != nil {
				states[i] = e.Record.State
			}
		}
		return states, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
