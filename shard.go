package tallyman

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// shard is one pair of command stream and bucket. A command, its record and
// all that is filed about the sequences of the stream lie in one shard.
type shard struct {
	index    int
	name     string // of the pool as which it is laid out
	commands commands
	records  records

	// What tools see; nil on a double.
	stream *stream.Stream
	bucket *kvstate.Store
}

// shardName names the pool as which a shard is laid out. The first has the
// names of a pool that is not sharded.
func shardName(pool string, index int) string {
	if index == 0 {
		return pool
	}
	return pool + "_" + strconv.Itoa(index)
}

// Shard is one pair of command stream and bucket, for tools that look behind the scenes.
type Shard struct {
	Index    int // counts from 0
	Commands *stream.Stream
	Records  *kvstate.Store
}

// Shards returns every shard of the pool, in order. A pool that is not sharded has one.
func (p *Pool) Shards() []Shard {
	all := make([]Shard, len(p.shards))
	for i, s := range p.shards {
		all[i] = s.shown()
	}
	return all
}

// ShardOf returns the shard where the command with this token, and its record, lie.
func (p *Pool) ShardOf(token command.Token) Shard { return p.of(token).shown() }

// CommandsOf returns the command stream of the shard that a token belongs to.
func (p *Pool) CommandsOf(t command.Token) *stream.Stream { return p.ShardOf(t).Commands }

// RecordsOf returns the bucket of the shard that a token belongs to.
func (p *Pool) RecordsOf(t command.Token) *kvstate.Store { return p.ShardOf(t).Records }

func (s *shard) shown() Shard { return Shard{Index: s.index, Commands: s.stream, Records: s.bucket} }

// of returns the shard where the command with this token, and its record, lie.
func (p *Pool) of(token command.Token) *shard {
	if len(p.shards) == 1 {
		return p.shards[0]
	}
	return p.shards[dedupe.Shard(token, len(p.shards))]
}

// atOnce bounds how many shards are asked something at the same time.
const atOnce = 16

// eachShard calls f for the indices from up to n and returns the first error in their order.
func eachShard(from, n int, f func(index int) error) error {
	if n-from == 1 {
		return f(from)
	}
	var all sync.WaitGroup
	errs := make([]error, n)
	room := make(chan struct{}, atOnce)
	for i := from; i < n; i++ {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			errs[i] = f(i)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// openShard opens one shard, and returns what is stored there as settings.
func (p *Pool) openShard(ctx context.Context, js jetstream.JetStream, index int) (*shard, kvstate.Entry, error) {
	s := &shard{index: index, name: shardName(p.name, index)}
	var err error
	if s.bucket, err = kvstate.Open(ctx, p.nc, js, p.pipe, kvstate.Config{Pool: s.name}); err != nil {
		return nil, kvstate.Entry{}, withRemedy(translate(err), ErrNoPool, p.remedy())
	}
	if s.stream, err = stream.Open(ctx, p.nc, js, p.pipe, s.name); err != nil {
		return nil, kvstate.Entry{}, withRemedy(translate(err), ErrNoPool, p.remedy())
	}
	s.records, s.commands = s.bucket, pulling{s.stream}
	e, err := s.bucket.Read(ctx, kvstate.KeySettings)
	if err != nil {
		return nil, kvstate.Entry{}, translate(err)
	}
	if e.Raw == nil {
		return nil, kvstate.Entry{}, fmt.Errorf("%w: bucket %q has no settings; %s", ErrNoPool, s.name, p.remedy())
	}
	return s, e, nil
}

// openOthers opens the shards behind the first.
func (p *Pool) openOthers(ctx context.Context, js jetstream.JetStream) error {
	return eachShard(1, len(p.shards), func(i int) error {
		s, e, err := p.openShard(ctx, js, i)
		if err != nil {
			return err
		}
		at := place{p.name, i}
		have, is, err := decodeSettings(e.Raw)
		switch {
		case is != at:
			return strange(at, is, err)
		case err != nil:
			return fmt.Errorf("shard %d: %w", i, err)
		case have.Shards != len(p.shards):
			return fmt.Errorf("%w: bucket %q was made for a pool of %s, the pool has %d; %s", ErrSettings, s.name, plural.Count(have.Shards, "shard"), len(p.shards), p.remedy())
		}
		s.bucket.Keep(p.settings.Retention)
		p.shards[i] = s
		return nil
	})
}

// remedy says how to make what is missing of the pool.
func (p *Pool) remedy() string { return "create it with: tallyman init --pool " + p.name }

// strange says what is wrong with a shard's bucket that does not say that it is one; err
// is what its settings do not decode for.
func strange(at, is place, err error) error {
	if errors.Is(err, errGarbled) {
		return fmt.Errorf("%w: bucket %q, which would be shard %d: %w; if it is the shard, delete them with nats kv del %s %s, then run tallyman init --pool %s", ErrSettings, at, at.index, errGarbled, at, kvstate.KeySettings, at.pool)
	}
	return misplaced(at, is)
}

// misplaced says that a bucket, wanted as one thing, is another.
func misplaced(want, is place) error {
	switch {
	case want.pool == "":
		return fmt.Errorf("%w: it is shard %d of pool %q; use --pool %s", ErrSettings, is.index, is.pool, is.pool)
	case is.pool == "":
		return fmt.Errorf("%w: shard %d of pool %q would be %q, which is a pool of its own; choose another name for the pool", ErrSettings, want.index, want.pool, want)
	}
	return fmt.Errorf("%w: shard %d of pool %q would be %q, which is shard %d of pool %q; choose another name for the pool", ErrSettings, want.index, want.pool, want, is.index, is.pool)
}
