package tallyman

import (
	"context"
	"fmt"
	"strings"

	"github.com/tallyman-go/tallyman/stream"
)

// A pool is made of ordinary streams and consumers, which other tools can change.
// Some changes lose commands, or keep them back, and show nowhere: so workers do
// not start on them, nor stay ready, and status names them.

// altered says in what the stream and the bucket of a shard are not as Create makes
// them; empty if in nothing that matters, or on a double.
func (p *Pool) altered(ctx context.Context, s *shard) ([]string, error) {
	if s.stream == nil {
		return nil, nil
	}
	commands, err := s.stream.Altered(ctx)
	if err != nil {
		return nil, err
	}
	bucket, err := s.bucket.Altered(ctx)
	if err != nil {
		return nil, err
	}
	remedy := "tallyman init --pool " + p.name
	return append(
		alteration("stream "+s.stream.Name(), commands, remedy),
		alteration("bucket "+s.bucket.Bucket(), bucket, remedy)...), nil
}

// alteredQueue says the same of the consumer of a queue.
func (p *Pool) alteredQueue(s *shard, q stream.Queue) []string {
	is := q.Altered
	if q.Lease != p.settings.Lease {
		is = append(is, fmt.Sprintf("its ack wait is %v, and the lease of the pool %v", q.Lease, p.settings.Lease))
	}
	return alteration("the consumer of queue "+source{q.Name, s}.String(), is, fmt.Sprintf("tallyman init --pool %s --queue %s", p.name, q.Name))
}

// alteration is one line, or none, about a thing that is not as it was made.
func alteration(what string, is []string, remedy string) []string {
	if len(is) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s is not as tallyman init makes it: %s; run: %s", what, strings.Join(is, "; "), remedy)}
}

// refuse returns the error of a worker that meets alterations, nil if there are none.
func refuse(alterations []string) error {
	if len(alterations) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrSettings, strings.Join(alterations, "; and "))
}

// Altered names what of the pool other tools have changed so that commands may
// be lost, or wait in vain: a line for each stream, bucket and consumer, with the
// remedy. A worker does not start on one of its own that is, with ErrSettings.
func (p *Pool) Altered(ctx context.Context) ([]string, error) {
	var all []string
	for _, s := range p.shards {
		lines, err := p.altered(ctx, s)
		if err != nil {
			return nil, fmt.Errorf("tallyman: look at the pool: %w", translate(err))
		}
		all = append(all, lines...)
		queues, err := s.stream.Queues(ctx)
		if err != nil {
			return nil, fmt.Errorf("tallyman: look at the pool: %w", translate(err))
		}
		for _, q := range queues {
			all = append(all, p.alteredQueue(s, q)...)
		}
	}
	return all, nil
}
