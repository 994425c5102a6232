package journal

import (
	"context"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// readMany reads the records of commands, each from the bucket of its shard, in
// the order of the keys. There may be up to kvstate.MaxBatch.
func (j *Journal) readMany(ctx context.Context, keys []command.Token) ([]kvstate.Entry, error) {
	type share struct {
		keys []command.Token
		at   []int // in keys
	}
	shares := map[*kvstate.Store]*share{}
	for i, key := range keys {
		in := j.recordsOf(key)
		s := shares[in]
		if s == nil {
			s = &share{}
			shares[in] = s
		}
		s.keys, s.at = append(s.keys, key), append(s.at, i)
	}
	entries := make([]kvstate.Entry, len(keys))
	for in, s := range shares {
		some, err := in.ReadManyWait(ctx, s.keys)
		if err != nil {
			return nil, err
		}
		for n, e := range some {
			entries[s.at[n]] = e
		}
	}
	return entries, nil
}
