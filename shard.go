package tallyman

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
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
		have, is, err := decodeSettings(e.Raw, kvstate.Version)
		switch {
		case is != at:
			return strange(at, is, err)
		case err != nil:
			return fmt.Errorf("shard %d: %w", i, err)
		case have.Shards != len(p.shards):
			return fmt.Errorf("%w: bucket %q was made for a pool of %d shards, the pool has %d; %s", ErrSettings, s.name, have.Shards, len(p.shards), p.remedy())
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

// Creating: the shards behind the first are made in order, each with its mark,
// then the first, whose settings make the pool. A crash in between leaves shards that are
// marked as the pool's, and no pool. The mark of shard 1 comes first of all
// and says how many there will be, so that whoever repeats the act ends up with the same.

// planned returns the settings that the pool is to have, with the number of
// shards, and whether there is one already. What was begun and
// not made to the end rules whatever is not stated.
func (c *creation) planned(want Settings) (planned Settings, settled bool, err error) {
	raw, err := c.stored(0)
	if err != nil {
		return Settings{}, false, err
	}
	if raw != nil {
		have, is, err := decodeSettings(raw, kvstate.Version)
		if is != (place{}) {
			return Settings{}, false, misplaced(place{}, is)
		}
		if err == nil {
			err = have.Require(Settings{Shards: want.Shards})
			want.Shards = have.Shards
			return want, true, err
		}
		if !c.topology.Change || isUnderway(err) {
			return Settings{}, false, err
		}
	}
	begun, how, err := c.begun()
	switch {
	case err != nil:
		return Settings{}, false, err
	case begun == Settings{}:
		want.Shards = max(want.Shards, 1)
		return want, false, nil
	case want.Shards > 0 && begun.Shards != want.Shards, want.Removal != "" && begun.Removal != want.Removal:
		return Settings{}, false, c.differs(want, begun)
	}
	if how != nil {
		c.topology = how.under(c.topology)
	}
	return want.over(begun), false, nil
}

// differs says why a pool cannot get what is wanted that was begun otherwise. One
// that was made to the end holds commands, whatever has become of its settings: nobody is
// told to remove its streams.
func (c *creation) differs(want, begun Settings) error {
	switch _, err := stream.Open(c.ctx, c.nc, c.js, c.pipe, c.name); {
	case errors.Is(err, stream.ErrNoStream):
		return errBegun(c.name, begun)
	case err != nil:
		return err
	case want.Shards > 0 && begun.Shards != want.Shards:
		return begun.Require(Settings{Shards: want.Shards})
	}
	return errRemoval(begun.Removal)
}

// begun returns with which settings, and how, a pool was begun that was not made to the
// end; zero if there is no trace of one.
func (c *creation) begun() (Settings, *beginning, error) {
	raw, err := c.stored(1)
	if err != nil || raw == nil {
		return Settings{}, nil, err
	}
	have, is, err := decodeSettings(raw, kvstate.Version)
	if is != (place{c.name, 1}) {
		return Settings{}, nil, nil // somebody else's
	}
	return have, beginningOf(raw), err
}

// beginning is the topology with which a pool of several shards was begun. It lies
// in the mark of shard 1.
type beginning struct {
	Replicas    int      `json:"replicas,omitempty"`
	Queues      []string `json:"queues,omitempty"`
	MaxBytes    int64    `json:"max_bytes,omitempty"`
	MaxCommands int64    `json:"max_commands,omitempty"`
}

// beginning returns what the mark of a shard is to say about it; nil if it is none
// to say it, or the pool exists.
func (c *creation) beginning(index int, settled bool) *beginning {
	if settled {
		return nil
	}
	b := &beginning{}
	if t := c.topology; index == 1 {
		*b = beginning{Replicas: t.Replicas, Queues: t.Queues, MaxBytes: t.MaxBytes, MaxCommands: t.MaxCommands}
	}
	return b
}

// under fills in what t leaves open.
func (b *beginning) under(t Topology) Topology {
	t.Replicas = cmp.Or(t.Replicas, b.Replicas)
	t.MaxBytes = cmp.Or(t.MaxBytes, b.MaxBytes)
	t.MaxCommands = cmp.Or(t.MaxCommands, b.MaxCommands)
	if len(t.Queues) == 0 {
		t.Queues = b.Queues
	}
	return t
}

func beginningOf(raw []byte) *beginning {
	var in storedSettings
	if json.Unmarshal(raw, &in) != nil {
		return nil
	}
	return in.Begun
}

func errBegun(pool string, begun Settings) error {
	n := begun.Shards
	return fmt.Errorf("%w: pool %q was begun with %d shards and removal %s; repeat with --shards %d --removal %s, or remove the streams of shards 1 to %d first", ErrSettings, pool, n, begun.Removal, n, begun.Removal, n-1)
}

// stored returns the settings in the bucket of a shard; nil if there are none, or no bucket.
func (c *creation) stored(index int) ([]byte, error) {
	records, err := kvstate.Open(c.ctx, c.nc, c.js, c.pipe, kvstate.Config{Pool: shardName(c.name, index)})
	if errors.Is(err, kvstate.ErrNoBucket) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e, err := records.Read(c.ctx, kvstate.KeySettings)
	return e.Raw, err
}

// vacant returns an error if a shard's bucket belongs to something else.
func (c *creation) vacant(index int) error {
	at := place{c.name, index}
	if err := command.ValidateName("shard", at.String()); err != nil {
		return err
	}
	raw, err := c.stored(index)
	if err != nil || raw == nil {
		return err
	}
	if _, is, err := decodeSettings(raw, kvstate.Version); is != at { // mark says what else is wrong
		return strange(at, is, err)
	}
	return nil
}

// mark stores in a shard's bucket whose it is. Begun says that the pool does not exist yet.
func mark(ctx context.Context, records *kvstate.Store, at place, s Settings, begun *beginning) error {
	in := s.stored(at, kvstate.Version)
	if begun != nil && !reflect.DeepEqual(*begun, beginning{}) {
		in.Begun = begun
	}
	body, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return err
	}
	for {
		e, err := records.Read(ctx, kvstate.KeySettings)
		if err != nil {
			return err
		}
		if e.Raw != nil {
			have, is, err := decodeSettings(e.Raw, kvstate.Version)
			switch {
			case is != at:
				return strange(at, is, err)
			case bytes.Equal(e.Raw, body):
				return nil
			case err == nil && begun != nil && have.Shards != s.Shards:
				return errBegun(at.pool, have)
			}
		}
		if err := records.PutWait(ctx, kvstate.KeySettings, body, e.Revision); !errors.Is(err, kvstate.ErrStale) {
			return err
		}
	}
}
