package kvstate

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// ErrNoBatches means that the server does not know atomic batches.
var ErrNoBatches = errors.New("the server knows no atomic batches; it takes nats-server 2.12 or newer")

// AllowBatches says whether the pool's bucket takes atomic batches, which Gather
// needs. Create leaves that as it is. Safe to repeat.
func AllowBatches(ctx context.Context, js jetstream.JetStream, pool string, allow bool) error {
	str, err := js.Stream(ctx, "KV_"+pool)
	if err == nil {
		cfg := str.CachedInfo().Config
		if cfg.AllowAtomicPublish == allow {
			return nil
		}
		cfg.AllowAtomicPublish = allow
		if str, err = js.UpdateStream(ctx, cfg); err == nil && str.CachedInfo().Config.AllowAtomicPublish != allow {
			err = ErrNoBatches
		}
	}
	if err != nil {
		return fmt.Errorf("kvstate: allow batches in bucket %q: %w", pool, pipeline.Away(err))
	}
	return nil
}

// Gather makes writes that are under way at the same time share atomic batches
// of the server, and so one flush to disk. It needs a bucket that
// AllowBatches; for any other one off gets the reason, once, and writes go one by
// one. Call it before any write. Off must not block.
func (s *Store) Gather(off func(error)) {
	s.group = pipeline.NewGroup(s.pipe, pipeline.GroupConfig{
		One: func(err *pipeline.APIError) bool { return errors.Is(classify(err), ErrStale) },
		Off: func(err error) {
			off(fmt.Errorf("kvstate: bucket %q takes no batches: %w", s.Bucket(), err))
		},
	})
}
