package tallyman

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Topology says how a pool's assets are laid out.
type Topology struct {
	// Replicas of stream and bucket, 1 to 5. 0 leaves a pool that exists as it
	// is, and makes a new one with 1. With 3, an acknowledged write survives
	// the loss of a server.
	Replicas int
	// Queues to create beside those that exist. Default "default".
	Queues []string
	// MaxBytes and MaxCommands bound the command stream. 0 leaves the bounds of
	// a pool that exists, and gives a new one none; below 0 means no bound. A
	// full pool refuses new commands with ErrPoolFull; it never drops old ones.
	// Each shard gets its part, rounded up, so a pool may be full for the ids of one
	// shard while others have room.
	MaxBytes    int64
	MaxCommands int64
	// Change allows Create to alter the settings of a pool that exists. Stop
	// all workers first: they trust the lease that they started with.
	Change bool
}

// Create makes the pool's stream, bucket and consumers, and stores its
// settings. It is the operator's act and needs the right to create assets;
// workers and producers get by without. It is safe to repeat: zero fields of
// settings leave those of an existing pool as they are, and fields that differ
// are refused with ErrSettings unless topology.Change is set. While the cluster
// has no leader yet it fails with ErrUnavailable; what gets no answer is asked
// again, until ctx ends or 30 s and a second for each shard are over.
func Create(ctx context.Context, nc *nats.Conn, name string, settings Settings, topology Topology) error {
	if err := command.ValidateName("pool", name); err != nil {
		return fmt.Errorf("tallyman: create pool: %w", err)
	}
	// The client library's own limit is short for a cluster that elects leaders.
	ctx, cancel := pipeline.Within(ctx, openTime+time.Duration(settings.Shards)*time.Second)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, err)
	}
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, err)
	}
	defer pipe.Close()
	if err := pipeline.Again(ctx, createTime+time.Duration(settings.Shards)*time.Second, func(ctx context.Context) error {
		c := &creation{ctx: ctx, nc: nc, js: js, pipe: pipe, name: name, topology: topology}
		return c.run(settings)
	}); err != nil {
		return fmt.Errorf("tallyman: create pool %q: %w", name, translate(unheardOf(err)))
	}
	return nil
}

// createTime bounds one try to make a pool; each shard adds a second.
const createTime = 10 * time.Second

// unheardOf turns the error that something does not exist which was made just now into
// one that passes: on a cluster the server that is asked may not have heard of it yet.
func unheardOf(err error) error {
	if isOneOf(err, stream.ErrNoStream, kvstate.ErrNoBucket) {
		return fmt.Errorf("%w: what was made just now is not known everywhere yet, try again: %v", ErrUnavailable, err) //nolint:errorlint // it is not what the error says
	}
	return err
}

// creation is one call of Create.
type creation struct {
	ctx      context.Context
	nc       *nats.Conn
	js       jetstream.JetStream
	pipe     *pipeline.Pipe
	name     string
	topology Topology
	like     *Topology // what the shards behind the first get, if not topology
}

func (c *creation) run(want Settings) error {
	want, settled, err := c.planned(want)
	if err != nil {
		return err
	}
	n := want.Shards
	if want.Removal, err = c.removal(n, want.Removal); err != nil {
		return err
	}
	agree := func(records *kvstate.Store) (Settings, error) {
		return agree(c.ctx, records, want, c.topology.Change)
	}
	if n == 1 {
		_, err := c.shard(0, n, agree)
		return err
	}
	agreed := want.WithDefaults()
	if err := agreed.Validate(); err != nil {
		return err
	}
	if err := eachShard(1, n, c.vacant); err != nil {
		return err
	}
	if settled {
		// What is stored rules the other shards as well. To change it begins with the first:
		// were the act cut off, repeating it finds what still differs.
		if agreed, err = c.shard(0, n, agree); err != nil {
			return err
		}
		if err := c.copyFirst(n); err != nil {
			return err
		}
	}
	marked := func(index int) error {
		_, err := c.shard(index, n, func(records *kvstate.Store) (Settings, error) {
			return agreed, mark(c.ctx, records, place{c.name, index}, agreed, c.beginning(index, settled))
		})
		return err
	}
	if err := marked(1); err != nil { // its mark says how many there are to be
		return err
	}
	if err := eachShard(2, n, marked); err != nil {
		return err
	}
	if !settled {
		if _, err = c.shard(0, n, agree); err != nil {
			return err
		}
	}
	c.spread(n)
	return nil
}

// agree stores the settings of a new pool, or brings wanted and stored ones together.
func agree(ctx context.Context, records *kvstate.Store, want Settings, change bool) (Settings, error) {
	for {
		e, err := records.Read(ctx, kvstate.KeySettings)
		if err != nil {
			return Settings{}, err
		}
		agreed := want.WithDefaults()
		if e.Raw != nil {
			have, is, err := decodeSettings(e.Raw)
			switch {
			case is != (place{}):
				return Settings{}, misplaced(place{}, is)
			case err != nil && (!change || isUnderway(err)):
				return Settings{}, err
			case err == nil && have.Shards != want.Shards:
				return Settings{}, have.Require(Settings{Shards: want.Shards}) // made by somebody else just now
			case err == nil:
				agreed = want.over(have)
			}
			if err == nil && agreed == have {
				return have, nil
			}
			if err == nil && agreed.Removal != have.Removal && !change {
				return Settings{}, errUnlike(have.Removal, agreed.Removal)
			}
			if !change {
				return Settings{}, have.Require(want)
			}
		}
		if err := agreed.Validate(); err != nil {
			return Settings{}, err
		}
		body, err := agreed.stored(place{}).encode()
		if err != nil {
			return Settings{}, err
		}
		err = records.PutWait(ctx, kvstate.KeySettings, body, e.Revision)
		if errors.Is(err, kvstate.ErrStale) {
			continue // somebody else was creating the same pool
		}
		return agreed, err
	}
}

// removal returns the way of removal for which the streams were made that exist,
// and the one that is wanted if there are none. Whatever is stored as a setting,
// nothing can change them, so another one is refused before anything is stored.
func (c *creation) removal(n int, want Removal) (Removal, error) {
	each := make([]Removal, n)
	err := eachShard(0, n, func(i int) error {
		s, err := stream.Open(c.ctx, c.nc, c.js, c.pipe, shardName(c.name, i))
		switch {
		case errors.Is(err, stream.ErrNoStream):
			return nil
		case err != nil:
			return err
		}
		each[i] = removalOf(s)
		return nil
	})
	if err != nil {
		return "", err
	}
	want = cmp.Or(want, cmp.Or(each...))
	for i, is := range each {
		if is != "" && is != want {
			return "", fmt.Errorf("%w (see stream %s)", errRemoval(is), stream.Name(shardName(c.name, i)))
		}
	}
	return want, nil
}

// removalOf returns the way of removal for which a stream was made.
func removalOf(s *stream.Stream) Removal {
	if s.Sweeps() {
		return RemovalSweep
	}
	return RemovalAck
}

// errRemoval refuses another way of removal than the pool was made with.
func errRemoval(have Removal) error {
	return fmt.Errorf("%w: the removal of this pool is %s, and the server cannot change that for a stream that exists; drop the setting, or make another pool, let this one run empty and submit to the other", ErrSettings, have)
}

// errUnlike says that the settings name another way of removal than the stream's.
func errUnlike(have, is Removal) error {
	return fmt.Errorf("%w: key %s says that removal is %s, and the command stream is made for %s; stop all workers and run tallyman init --change, which writes down what the stream is", ErrSettings, kvstate.KeySettings, have, is)
}

// copyFirst has the shards behind the first of n laid out like that one. Whoever repeats
// Create need not know how the pool was made, and one that was
// taken away by hand must not come back with fewer replicas or queues.
func (c *creation) copyFirst(n int) error {
	first, err := stream.Open(c.ctx, c.nc, c.js, c.pipe, c.name)
	if err != nil {
		return err
	}
	state, err := first.State(c.ctx)
	if err != nil {
		return err
	}
	queues, err := first.Queues(c.ctx)
	if err != nil {
		return err
	}
	c.like = &Topology{Replicas: state.Replicas, MaxBytes: whole(state.MaxBytes, n), MaxCommands: whole(state.MaxMsgs, n)}
	for _, q := range queues {
		c.like.Queues = append(c.like.Queues, q.Name)
	}
	return nil
}

// spread lets the servers of a cluster lead about as many shards each. Where it
// fails the pool works all the same, and whoever repeats Create tries again.
func (c *creation) spread(n int) {
	var streams, buckets []string
	for i := range n {
		name := shardName(c.name, i)
		streams, buckets = append(streams, stream.Name(name)), append(buckets, kvstate.StreamName(name))
	}
	_ = stream.Spread(c.ctx, c.nc, c.js, streams)
	_ = stream.Spread(c.ctx, c.nc, c.js, buckets)
}

// shard makes one of n shards: its bucket, with the settings that agree
// stores and returns, then its stream and consumers.
func (c *creation) shard(index, n int, agree func(*kvstate.Store) (Settings, error)) (Settings, error) {
	ctx, js, name := c.ctx, c.js, shardName(c.name, index)
	topology := c.topology
	if index > 0 && c.like != nil {
		topology = *c.like
	}
	if err := kvstate.Create(ctx, js, kvstate.Config{Pool: name, Replicas: topology.Replicas}); err != nil {
		return Settings{}, err
	}
	records, err := kvstate.Open(ctx, c.nc, js, c.pipe, kvstate.Config{Pool: name})
	if err != nil {
		return Settings{}, err
	}
	agreed, err := agree(records)
	if err != nil {
		return Settings{}, err
	}
	if err := kvstate.AllowBatches(ctx, js, name, agreed.Commit == CommitGroup); err != nil {
		return Settings{}, err
	}
	queues := slices.Clone(topology.Queues)
	if len(queues) == 0 {
		queues = []string{command.DefaultQueue}
	}
	if c.topology.Change {
		// Queues that exist take the new lease too.
		if s, err := stream.Open(ctx, c.nc, js, c.pipe, name); err == nil {
			there, err := s.Queues(ctx)
			if err != nil {
				return Settings{}, err
			}
			for _, q := range there {
				queues = append(queues, q.Name)
			}
		}
	}
	return agreed, stream.Create(ctx, js, stream.Config{
		Pool: name, Replicas: topology.Replicas, Queues: queues, Lease: agreed.Lease,
		MaxBytes: portion(topology.MaxBytes, n), MaxMsgs: portion(topology.MaxCommands, n), Batches: agreed.Commit == CommitGroup,
		Sweep: agreed.Removal == RemovalSweep,
	})
}

// portion is one of n shards' share of a limit, rounded up. 0 and below have meanings of their own.
func portion(limit int64, n int) int64 {
	if limit <= 0 {
		return limit
	}
	return (limit-1)/int64(n) + 1
}

// whole is a limit of the pool, given that of one of its shards; -1 stands for none.
func whole(limit int64, n int) int64 {
	if limit <= 0 {
		return -1
	}
	return limit * int64(n)
}
