package tallyman

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Filter says which changes Watch yields. The zero value stands for all of
// them, from the moment on at which the loop begins.
type Filter struct {
	IDs    []string // of these commands alone
	Kind   string   // of this kind alone
	States []State  // into one of these states alone
	// Current yields first, for each command that matches, what is stored now.
	Current bool
	// After yields first what is stored and newer than this revision, such as
	// that of the last change that an earlier Watch has seen. It overrides Current.
	// In a pool of several shards use AfterEach.
	After uint64
	// AfterEach is After for each shard, by its index; those that it does not
	// reach, or where it is 0, begin as without it.
	AfterEach []uint64
}

// Change is one new revision of a record.
type Change struct {
	ID       string
	Key      command.Token // where it lies: the token of the id, or a key of a copy that was parked
	Shard    int           // of the pool, counted from 0
	Revision uint64        // grows from change to change of the same shard
	At       time.Time     // when the server stored it
	// Record is nil if the entry was deleted by hand, or is damaged.
	Record *kvstate.Record
	// Err says why the stored bytes are no record.
	Err error
}

// watchKeys is up to how many ids are read by themselves; with more of them
// the whole bucket is read, which costs the server less.
const watchKeys = 64

// Watch yields changes of records as they happen, in the order of their
// revisions within each shard, until ctx ends or the loop is left. The last pair has an error,
// with no change; no other has.
//
//	for change, err := range pool.Watch(ctx, tallyman.Filter{Kind: "resize"}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(change.ID, change.Record.State)
//	}
//
// It survives lost connections and restarted servers, and resumes behind the
// last change that it yielded. The newest revision of a record is never missed.
// Those before it may be: the bucket keeps two of each, and a receipt replaces
// all. A loop that is slow holds nothing up and makes nothing grow: it reads on
// when it comes back, at most 256 records at a time.
//
// A command has a record only once a worker has written about it: one that
// waits, or whose first attempt runs and has saved no progress, shows nothing.
// Receipts that expire show nothing either.
//
// Errors: that of ctx, ErrInvalidID, ErrDenied, ErrNoPool, and ErrSettings for an
// After that cannot mean every shard. Each loop holds one
// subscription per id, or one for each bucket; its records pass over the
// wire twice.
func (p *Pool) Watch(ctx context.Context, f Filter) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		loops, err := p.watches(f)
		switch {
		case err != nil:
		case len(loops) == 1:
			err = loops[0].run(ctx, func(c Change) bool { return yield(c, nil) })
		default:
			err = merge(ctx, loops, func(c Change) bool { return yield(c, nil) })
		}
		if err != nil {
			yield(Change{}, fmt.Errorf("tallyman: watch pool %q: %w", p.name, translate(err)))
		}
	}
}

// watches returns a loop for each shard where something may match.
func (p *Pool) watches(f Filter) ([]*watch, error) {
	if f.After > 0 && len(p.shards) > 1 {
		return nil, fmt.Errorf("%w: the pool has %d shards, each with revisions of its own; give AfterEach instead of After", ErrSettings, len(p.shards))
	}
	loops := make([]*watch, len(p.shards))
	for i, s := range p.shards {
		loops[i] = &watch{pool: p, shard: s, filter: f, after: f.After, hints: make(chan struct{}, 1)}
		if i < len(f.AfterEach) && f.AfterEach[i] > 0 {
			loops[i].after = f.AfterEach[i]
		}
	}
	for _, id := range f.IDs {
		key, err := dedupe.Token(id)
		if err != nil {
			return nil, err
		}
		w := loops[p.of(key).index]
		if w.wanted == nil {
			w.wanted = map[command.Token]bool{}
		}
		w.wanted[key] = true
		if len(f.IDs) <= watchKeys {
			w.keys = append(w.keys, key)
		}
	}
	if len(f.IDs) > 0 {
		loops = slices.DeleteFunc(loops, func(w *watch) bool { return w.wanted == nil })
	}
	return loops, nil
}

// merge runs several loops until take wants no more, or one of them fails.
func merge(ctx context.Context, loops []*watch, take func(Change) bool) error {
	var all sync.WaitGroup
	defer all.Wait()
	running, stop := context.WithCancel(ctx)
	defer stop()
	changes, failed := make(chan Change), make(chan error, len(loops))
	for _, w := range loops {
		all.Go(func() {
			if err := w.run(running, func(c Change) bool {
				select {
				case changes <- c:
					return true
				case <-running.Done():
					return false
				}
			}); err != nil {
				failed <- err
			}
		})
	}
	for {
		select {
		case c := <-changes:
			if !take(c) {
				return nil
			}
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
