package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// seen is what a Watch has yielded, handed over one by one.
type seen chan tallyman.Change

// watch starts a loop over changes and returns once it has begun, where the
// filter begins at a revision. It ends with the test.
func (r *rig) watch(t *testing.T, f tallyman.Filter) seen {
	t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	changes, ended := make(seen), make(chan struct{})
	go func() {
		defer close(ended)
		for c, err := range r.Watch(ctx, f) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("watch: %v", err)
				}
				return
			}
			select {
			case changes <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return changes
}

// next waits for a change.
func (s seen) next(t *testing.T, ctx context.Context) tallyman.Change {
	t.Helper()
	select {
	case c := <-s:
		return c
	case <-ctx.Done():
		t.Fatal("waited in vain for a change")
		return tallyman.Change{}
	}
}

// write stores a record as a worker would, over what is there, and returns its revision.
func (r *rig) write(t testing.TB, id, kind string, state kvstate.State) uint64 {
	t.Helper()
	rec := &kvstate.Record{ID: id, Kind: kind, State: state, Owner: "w", Revision: r.entry(t, command.Token(id)).Revision}
	revision, err := r.Records().WriteWait(r.ctx, command.Token(id), rec)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func (r *rig) revision(t testing.TB) uint64 {
	t.Helper()
	last, err := r.Records().LastRevision(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	first := r.write(t, "a", "x", kvstate.Claimed)
	second := r.write(t, "a", "x", kvstate.Waiting)
	other := r.write(t, "b", "y", kvstate.Claimed)
	describe := func(c tallyman.Change) string {
		if c.Record == nil {
			return fmt.Sprintf("%s at %d gone or damaged", c.ID, c.Revision)
		}
		return fmt.Sprintf("%s at %d %s", c.ID, c.Revision, c.Record.State)
	}
	for name, c := range map[string]struct {
		filter tallyman.Filter
		want   []string
	}{
		"what is stored now comes first, without what was replaced": {
			tallyman.Filter{Current: true}, []string{fmt.Sprintf("a at %d waiting", second), fmt.Sprintf("b at %d claimed", other)},
		},
		"it goes on behind the revision given": {
			tallyman.Filter{After: second}, []string{fmt.Sprintf("b at %d claimed", other)},
		},
		"it yields the older revision too, where the bucket has it": {
			tallyman.Filter{After: first - 1}, []string{
				fmt.Sprintf("a at %d claimed", first), fmt.Sprintf("a at %d waiting", second), fmt.Sprintf("b at %d claimed", other),
			},
		},
		"a kind leaves others out":   {tallyman.Filter{Current: true, Kind: "y"}, []string{fmt.Sprintf("b at %d claimed", other)}},
		"an id leaves others out":    {tallyman.Filter{Current: true, IDs: []string{"a"}}, []string{fmt.Sprintf("a at %d waiting", second)}},
		"a state leaves others out":  {tallyman.Filter{Current: true, States: []tallyman.State{kvstate.Claimed}}, []string{fmt.Sprintf("b at %d claimed", other)}},
		"several ids share one loop": {tallyman.Filter{After: first, IDs: []string{"b", "none", "a", "b"}}, []string{fmt.Sprintf("a at %d waiting", second), fmt.Sprintf("b at %d claimed", other)}},
	} {
		t.Run(name, func(t *testing.T) {
			changes := r.watch(t, c.filter)
			for _, want := range c.want {
				if got := describe(changes.next(t, r.ctx)); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	t.Run("an entry that was deleted, and one that is damaged, are told without a record", func(t *testing.T) {
		changes := r.watch(t, tallyman.Filter{After: r.revision(t)})
		kv, err := r.js.KeyValue(r.ctx, "main")
		if err != nil {
			t.Fatal(err)
		}
		if err := kv.Delete(r.ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if c := changes.next(t, r.ctx); c.ID != "b" || c.Record != nil || c.Err != nil {
			t.Errorf("deleted: got %+v, want no record and no error", c)
		}
		if _, err := kv.PutString(r.ctx, "c", "nonsense"); err != nil {
			t.Fatal(err)
		}
		if c := changes.next(t, r.ctx); c.ID != "c" || c.Record != nil || !errors.Is(c.Err, command.ErrMalformed) {
			t.Errorf("damaged: got %+v, want ErrMalformed", c)
		}
	})
	t.Run("notes are no records", func(t *testing.T) {
		changes := r.watch(t, tallyman.Filter{After: r.revision(t)})
		if err := r.Records().Note(r.ctx, "a", "1", &kvstate.Note{What: kvstate.NoteStuck}); err != nil {
			t.Fatal(err)
		}
		r.write(t, "d", "x", kvstate.Claimed)
		if c := changes.next(t, r.ctx); c.ID != "d" {
			t.Errorf("got a change of %+v, want d", c)
		}
	})
	t.Run("ends with its context, and leaves nothing behind", func(t *testing.T) {
		nc := connect(t, r.server.URL())
		p := open(t, nc)
		before := nc.NumSubscriptions()
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		var last error
		n := 0
		for c, err := range p.Watch(ctx, tallyman.Filter{Current: true, IDs: []string{"a"}}) {
			if n++; err != nil {
				last = err
				continue
			}
			if c.ID != "a" {
				t.Errorf("got a change of %q", c.ID)
			}
			cancel()
		}
		if !errors.Is(last, context.Canceled) || n != 2 {
			t.Errorf("got %d pairs, the last with %v; want one change and then the end of the context", n, last)
		}
		for range p.Watch(r.ctx, tallyman.Filter{Current: true}) {
			break
		}
		if got := nc.NumSubscriptions(); got != before {
			t.Errorf("%d subscriptions, want %d as before", got, before)
		}
	})
	t.Run("many ids are read with all others, and filtered", func(t *testing.T) {
		ids := []string{"a"}
		for i := range 100 {
			ids = append(ids, fmt.Sprintf("none-%d", i))
		}
		changes := r.watch(t, tallyman.Filter{Current: true, IDs: ids})
		if c := changes.next(t, r.ctx); c.ID != "a" {
			t.Errorf("got a change of %q, want a", c.ID)
		}
	})
	t.Run("an id that cannot be is refused", func(t *testing.T) {
		for _, err := range r.Watch(r.ctx, tallyman.Filter{IDs: []string{""}}) {
			if !errors.Is(err, tallyman.ErrInvalidID) {
				t.Errorf("got %v, want ErrInvalidID", err)
			}
		}
	})
	t.Run("a closed connection ends it", func(t *testing.T) {
		nc := connect(t, r.server.URL())
		p := open(t, nc)
		for _, err := range p.Watch(r.ctx, tallyman.Filter{Current: true, IDs: []string{"a"}}) {
			if err != nil {
				break
			}
			nc.Close()
		}
		if r.ctx.Err() != nil {
			t.Error("it did not end")
		}
	})
}

func TestWatch_ManyPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	const n = 700 // three pages
	last := map[string]uint64{}
	for _, state := range []kvstate.State{kvstate.Claimed, kvstate.Waiting} {
		for i := range n {
			id := fmt.Sprintf("c-%d", i)
			last[id] = r.write(t, id, "x", state)
		}
	}
	changes := r.watch(t, tallyman.Filter{Current: true})
	got := map[string]uint64{}
	for range n {
		c := changes.next(t, r.ctx)
		got[c.ID] = c.Revision
	}
	if !maps.Equal(got, last) {
		t.Errorf("got %d commands at other revisions than the %d that are stored", len(got), len(last))
	}
}

func TestWatch_AcrossRestarts(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	all := r.watch(t, tallyman.Filter{After: r.revision(t)})
	one := r.watch(t, tallyman.Filter{IDs: []string{"w"}, Current: true})
	type answer struct {
		receipt tallyman.Receipt
		err     error
	}
	waited := make(chan answer, 1)
	go func() {
		receipt, err := r.Wait(r.ctx, "w")
		waited <- answer{receipt, err}
	}()
	writer := open(t, r.nc) // with a connection of its own
	var written, got []uint64
	collect := func() {
		for len(got) < len(written) {
			got = append(got, all.next(t, r.ctx).Revision)
		}
	}
	put := func(id string, state kvstate.State) {
		var revision uint64
		eventually(t, r.ctx, "a write", func() bool {
			e, err := writer.Records().Read(r.ctx, command.Token(id))
			if err != nil {
				return false
			}
			if e.Record != nil && e.Record.State == state {
				revision = e.Revision // stored, and the answer got lost
				return true
			}
			rec := &kvstate.Record{ID: id, Kind: "x", State: state, Owner: "w", Revision: e.Revision}
			revision, err = writer.Records().WriteWait(r.ctx, command.Token(id), rec)
			return err == nil
		})
		written = append(written, revision)
	}
	for i := range 3 {
		put(fmt.Sprintf("before-%d", i), kvstate.Claimed)
		collect()
		if err := r.server.Restart(); err != nil {
			t.Fatal(err)
		}
		eventually(t, r.ctx, "the writer's connection", r.nc.IsConnected)
		put(fmt.Sprintf("after-%d", i), kvstate.Claimed) // while the loop may not be back yet
	}
	put("w", kvstate.Claimed)
	put("w", kvstate.Completed)
	written = append(written[:len(written)-2], written[len(written)-1]) // the receipt replaces the claim
	for len(got) == 0 || got[len(got)-1] != written[len(written)-1] {
		got = append(got, all.next(t, r.ctx).Revision)
	}
	if claim := written[len(written)-1] - 1; slices.Contains(got, claim) {
		written = slices.Insert(written, len(written)-1, claim) // it was seen before it was replaced
	}
	if !slices.Equal(got, written) {
		t.Errorf("got revisions %v, want %v", got, written)
	}
	for c := one.next(t, r.ctx); c.Record.State != kvstate.Completed; c = one.next(t, r.ctx) {
		if c.ID != "w" {
			t.Errorf("got a change of %q, want w alone", c.ID)
		}
	}
	if a := <-waited; a.err != nil || a.receipt.State != tallyman.Completed {
		t.Errorf("wait: %+v, %v", a.receipt, a.err)
	}
}

func TestKind_Wait(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	double := tallyman.NewKind[int, int]("double")
	mux := &tallyman.Mux{}
	double.Handle(mux, func(_ context.Context, _ *tallyman.Claim, n int) (int, error) {
		if n < 0 {
			return 0, tallyman.Reject(errors.New("below zero"))
		}
		return 2 * n, nil
	})
	start(t, r.Pool, tallyman.WorkerConfig{Mux: mux})
	for id, n := range map[string]int{"good": 21, "bad": -1} {
		c, err := double.Command(id, n)
		if err != nil {
			t.Fatal(err)
		}
		r.submit(t, c)
	}
	out, receipt, err := double.Wait(r.ctx, r.Pool, "good")
	if err != nil || out != 42 || receipt.State != tallyman.Completed {
		t.Errorf("got %d, %+v, %v; want 42 of a completed command", out, receipt, err)
	}
	if _, receipt, err = double.Wait(r.ctx, r.Pool, "bad"); !errors.Is(err, tallyman.ErrParked) || receipt.State != tallyman.Parked {
		t.Errorf("got %+v, %v; want ErrParked with its receipt", receipt, err)
	}
	if _, _, err = tallyman.NewKind[int, int]("halve").Wait(r.ctx, r.Pool, "good"); err == nil {
		t.Error("the result of another kind was decoded")
	}
}
