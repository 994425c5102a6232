package tallyman

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

const (
	// watchPoll is how often Watch looks when nothing has hinted at a change.
	watchPoll = time.Second
	// watchHurry is how many looks follow a hint in quick succession: after 1,
	// 2, 4, ... 64 ms.
	watchHurry = 7
)

// errReplaced ends a Watch whose bucket was made anew.
var errReplaced = errors.New("the bucket was replaced, its revisions count from the start again; begin anew without After")

// watch is one loop over the changes of a shard. It belongs to the goroutine of that loop.
type watch struct {
	pool    *Pool
	shard   *shard
	filter  Filter
	after   uint64                 // of the filter, for this shard
	wanted  map[command.Token]bool // the tokens of filter.IDs in this shard
	keys    []command.Token        // the same, if they are read by themselves
	cursor  uint64                 // the last revision that was read
	current uint64                 // up to this one, only what has not been replaced counts
	more    bool                   // to look again at once, as when there was more than fits into a page
	hurry   int                    // looks still to be made in quick succession
	behind  bool                   // the leader had what the last read did not show
	rested  bool                   // the last look came after a whole pause, without a hint

	subs  []*nats.Subscription
	hints chan struct{} // something was published, or the connection is back
	state chan nats.Status
}

// run calls take with each change until that returns false, which is no error.
func (w *watch) run(ctx context.Context, take func(Change) bool) error {
	err := w.open(ctx)
	defer w.close()
	for err == nil {
		var entries []kvstate.Entry
		if entries, err = w.next(ctx); err != nil {
			break
		}
		for _, e := range entries {
			w.cursor = e.Revision
			if c, ok := w.change(e); ok && !take(c) {
				return nil
			}
		}
	}
	return err
}

func (w *watch) open(ctx context.Context) error {
	subjects := []string{w.shard.bucket.Subject(kvstate.AllRecords)}
	if len(w.keys) > 0 {
		subjects = nil
	}
	for _, key := range w.keys {
		subjects = append(subjects, w.shard.bucket.Subject(key))
	}
	w.state = w.pool.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	for _, s := range subjects {
		// Writes pass by here before they are stored. They are but a hint to look.
		sub, err := w.pool.nc.Subscribe(s, func(*nats.Msg) { w.hint() })
		if err != nil {
			return err
		}
		w.subs = append(w.subs, sub)
	}
	w.more = true // look at once
	w.cursor = w.after
	for w.after == 0 {
		last, err := w.last(ctx)
		if err == nil {
			if w.filter.Current {
				w.current = last
			} else {
				w.cursor = last
			}
			return nil
		}
		if err := w.bear(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

func (w *watch) close() {
	for _, sub := range w.subs {
		_ = sub.Unsubscribe() // fails only when the connection is gone
	}
	if w.state != nil {
		w.pool.nc.RemoveStatusListener(w.state)
	}
}

func (w *watch) hint() {
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

// next waits for revisions behind the cursor and returns some of them, at least one.
func (w *watch) next(ctx context.Context) ([]kvstate.Entry, error) {
	for {
		if w.more {
			w.more = false
		} else if err := w.wait(ctx); err != nil {
			return nil, err
		}
		entries, err := w.read(ctx)
		if err != nil || len(entries) == 0 && (w.rested || w.behind) {
			if errors.Is(err, ErrDenied) {
				return nil, err
			}
			entries, err = w.ask(ctx)
			w.behind = w.behind && len(entries) > 0
		}
		if err != nil {
			if err := w.bear(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		if len(entries) > 0 {
			return entries, nil
		}
	}
}

// wait returns when it is time to look again.
func (w *watch) wait(ctx context.Context) error {
	pause := watchPoll
	w.rested = w.hurry == 0
	if w.hurry > 0 {
		pause = time.Millisecond << (watchHurry - w.hurry)
		w.hurry--
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.hints:
		w.hurry, w.rested = watchHurry, false
		return nil
	case s := <-w.state:
		if s == nats.CLOSED {
			return nats.ErrConnectionClosed
		}
		return nil
	case <-timer.C:
		return nil
	}
}

// bear returns err if it will not pass, or nil after a pause.
func (w *watch) bear(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.pool.nc.IsClosed(), errors.Is(err, pipeline.ErrClosed):
		return err
	case !isOneOf(err, pipeline.ErrIndeterminate, pipeline.ErrNoResponders, context.DeadlineExceeded,
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrStaleConnection):
		return err
	}
	pause := time.NewTimer(watchPoll / 4)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-pause.C:
	case <-w.state: // connected again; or closed for good, which the next try finds
	}
	w.hurry = watchHurry
	return nil
}

// read returns some revisions behind the cursor.
func (w *watch) read(ctx context.Context) (entries []kvstate.Entry, err error) {
	if len(w.keys) > 0 {
		return w.shard.bucket.Newest(ctx, w.keys, w.cursor+1)
	}
	entries, w.more, err = w.shard.bucket.Page(ctx, kvstate.AllRecords, w.cursor+1)
	if err != nil || w.cursor >= w.current || len(entries) == 0 {
		return entries, err
	}
	// The beginning: of what was stored then, only what still holds counts. What
	// replaced it has a higher revision, and comes later.
	keys := make([]command.Token, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	newest, err := w.shard.bucket.Newest(ctx, keys, 0)
	if err != nil {
		w.more = true // the same page again
		return nil, err
	}
	holds := make(map[command.Token]uint64, len(newest))
	for _, e := range newest {
		holds[e.Key] = e.Revision
	}
	for i := range entries {
		if e := &entries[i]; e.Revision <= w.current && e.Revision < holds[e.Key] {
			*e = kvstate.Entry{Key: kvstate.KeySettings, Revision: e.Revision} // moves the cursor alone
		}
	}
	return entries, nil
}

// ask asks the leader for revisions behind the cursor. What read returns may
// come from a replica that lags, for as long as a node takes to catch up.
func (w *watch) ask(ctx context.Context) ([]kvstate.Entry, error) {
	last, err := w.last(ctx)
	switch {
	case err != nil:
		return nil, err
	case last < w.cursor:
		return nil, errReplaced
	case last == w.cursor:
		return nil, nil
	case len(w.keys) == 0:
		e, err := w.shard.bucket.Next(ctx, kvstate.AllRecords, w.cursor+1)
		if err != nil || e.Revision == 0 {
			return nil, err
		}
		w.more, w.behind = true, true
		return []kvstate.Entry{e}, nil
	}
	var found []kvstate.Entry
	for _, key := range w.keys {
		e, err := w.shard.bucket.Read(ctx, key)
		if err != nil {
			return nil, err
		}
		// What is newer than last waits for the next time: while the later keys
		// are read, the earlier may change.
		if e.Revision > w.cursor && e.Revision <= last && !slices.ContainsFunc(found, func(f kvstate.Entry) bool { return f.Revision == e.Revision }) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b kvstate.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	return found, nil
}

// last is the newest revision of the bucket. A request that a node took along
// as it died is never answered, so each has a limit of its own.
func (w *watch) last(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*watchPoll)
	defer cancel()
	return w.shard.bucket.LastRevision(ctx)
}

// change says what an entry means, and whether the filter lets it pass.
func (w *watch) change(e kvstate.Entry) (Change, bool) {
	if kvstate.Own(e.Key) || w.wanted != nil && !w.wanted[e.Key] {
		return Change{}, false
	}
	c := Change{Key: e.Key, Shard: w.shard.index, Revision: e.Revision, At: e.At, Record: e.Record, Err: e.Err}
	if e.Record == nil {
		c.ID, _ = dedupe.ParseToken(e.Key) // empty for what lies under a sequence
		return c, w.filter.Kind == "" && w.filter.States == nil
	}
	c.ID = e.Record.ID
	return c, (w.filter.Kind == "" || e.Record.Kind == w.filter.Kind) &&
		(w.filter.States == nil || slices.Contains(w.filter.States, e.Record.State))
}
