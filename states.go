package tallyman

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// statesBatch is how many records States reads in one request.
const statesBatch = 256

// States tells where each of the given commands stands, in the same order,
// with one request to each shard for many of them. A command that no worker has written about
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
			return nil, fmt.Errorf("tallyman: states of %s: %w", plural.Count(n, "command"), err)
		}
		states, ids = append(states, part...), ids[n:]
	}
	return states, nil
}

func (p *Pool) states(ctx context.Context, ids []string) ([]State, error) {
	type request struct {
		keys []command.Token
		of   []int // indices of their ids
	}
	requests := make([]request, len(p.shards))
	for i, id := range ids {
		token, err := dedupe.Token(id)
		if err != nil {
			return nil, err
		}
		r := &requests[p.of(token).index]
		r.keys, r.of = append(r.keys, token), append(r.of, i)
	}
	type answer struct {
		of      []int
		entries []kvstate.Entry
		err     error
	}
	answers := make(chan answer, len(requests))
	asked := 0
	for i, r := range requests {
		if len(r.keys) == 0 {
			continue
		}
		asked++
		done := func(entries []kvstate.Entry, err error) { answers <- answer{r.of, entries, err} }
		if err := p.shards[i].records.ReadMany(r.keys, done); err != nil {
			return nil, translate(err)
		}
	}
	states := make([]State, len(ids))
	for range asked {
		select {
		case a := <-answers:
			if a.err != nil {
				return nil, translate(a.err)
			}
			for i, e := range a.entries {
				if e.Err != nil {
					return nil, fmt.Errorf("the record of %q is damaged: %w; see tallyman show", ids[a.of[i]], e.Err)
				}
				if e.Record != nil {
					states[a.of[i]] = e.Record.State
				}
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return states, nil
}
