package kvstate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// removedTTL is how long the marker of a removed entry stays, in seconds.
// Nothing lies below it, so nothing comes to light when it goes.
const removedTTL = "60"

// Remove takes away an entry that is no record, if it still has the given
// revision; ErrStale means that somebody has written it since. Removing what
// is gone already does no harm.
func (s *Store) Remove(ctx context.Context, key command.Token, revision uint64) error {
	if !Own(key) {
		return fmt.Errorf("kvstate: remove %s: it is the record of a command, and those only expire", key)
	}
	return s.remove(ctx, key, revision)
}

func (s *Store) remove(ctx context.Context, key command.Token, revision uint64) error {
	m := pipeline.NewMessage(s.Subject(key), nil)
	m.Set("KV-Operation", "PURGE")
	m.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	m.Set(jetstream.MsgTTLHeader, removedTTL)
	m.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(revision, 10))
	_, err := s.sendWait(ctx, m)
	return err
}
