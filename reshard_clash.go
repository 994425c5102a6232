package tallyman

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// clash is an entry that lies in two shards, and says something else in each.
// Which of the two is right, a person has to find out.
type clash struct {
	key    command.Token
	bucket [2]string
}

// clashes are those that were met. It is safe for concurrent use.
type clashes struct {
	mu    sync.Mutex
	met   []clash // the first of them
	count int
}

// maxClashes bounds those that an error names.
const maxClashes = 20

func (c *clashes) add(key command.Token, one, other string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	met := clash{key, [2]string{min(one, other), max(one, other)}}
	if slices.Contains(c.met, met) {
		return
	}
	if c.count++; len(c.met) < maxClashes {
		c.met = append(c.met, met)
	}
}

// err names all that were met, each with what to do; nil if there are none.
func (c *clashes) err(shards int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == 0 {
		return nil
	}
	slices.SortFunc(c.met, func(a, b clash) int { return cmp.Compare(a.key, b.key) })
	places := make([]string, len(c.met))
	for i, m := range c.met {
		places[i] = fmt.Sprintf("%s in %s and %s", m.key, m.bucket[0], m.bucket[1])
	}
	text := strings.Join(places, ", ")
	if more := c.count - len(c.met); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return &clashError{fmt.Sprintf("two buckets disagree about %s: %s; find out of each which is right (nats kv get BUCKET KEY --raw | tallyman decode), nats kv purge the other, and run tallyman reshard --shards %d again", plural.Count(c.count, "entry"), text, shards)}
}

// clashError matches kvstate.ErrStale: another entry is in the way.
type clashError struct{ text string }

func (e *clashError) Error() string { return e.text }
func (e *clashError) Unwrap() error { return kvstate.ErrStale }

// clash returns an error if records that lie in the wrong shard differ from
// those in the right one, while nothing is changed yet. The audit that has found them
// lists a bounded number; those behind it are met when they are carried.
func (r *resharding) clash(ctx context.Context, report audit.Report) error {
	reports := report.Shards
	if len(reports) == 0 {
		return nil // all lie in one
	}
	found := &clashes{}
	at := map[command.Token][]*shard{} // where a record lies
	for i, s := range reports {
		for _, text := range s.Misplaced {
			key := command.Token(text)
			if at[key] == nil {
				at[key] = []*shard{r.shards[dedupe.Shard(key, r.mark.From)]}
			}
			at[key] = append(at[key], r.shards[i])
		}
	}
	for key, shards := range at {
		var first kvstate.Entry
		bucket := ""
		for _, s := range shards {
			e, err := s.bucket.Read(ctx, key)
			switch {
			case err != nil:
				return err
			case e.Raw == nil:
			case bucket == "":
				first, bucket = e, s.bucket.Bucket()
			case !first.Same(e):
				found.add(key, bucket, s.bucket.Bucket())
			}
		}
	}
	if err := found.err(r.mark.To); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return nil
}
