package tallyman

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

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
		have, is, err := decodeSettings(raw)
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
	have, is, err := decodeSettings(raw)
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
	if _, is, err := decodeSettings(raw); is != at { // mark says what else is wrong
		return strange(at, is, err)
	}
	return nil
}

// mark stores in a shard's bucket whose it is. Begun says that the pool does not exist yet.
func mark(ctx context.Context, records *kvstate.Store, at place, s Settings, begun *beginning) error {
	in := s.stored(at)
	if begun != nil && !reflect.DeepEqual(*begun, beginning{}) {
		in.Begun = begun
	}
	body, err := in.encode()
	if err != nil {
		return err
	}
	for {
		e, err := records.Read(ctx, kvstate.KeySettings)
		if err != nil {
			return err
		}
		if e.Raw != nil {
			have, is, err := decodeSettings(e.Raw)
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
