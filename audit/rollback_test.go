package audit_test

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/embedded"
)

// disk is a server whose store can be set back to an earlier copy, as a power
// cut sets back what was acknowledged and not yet synced.
type disk struct {
	*scene
	dir    string
	server *embedded.Server
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{dir: t.TempDir()}
	d.start(t)
	return d
}

// start starts the server on the store and opens the pool anew.
func (d *disk) start(t *testing.T) {
	t.Helper()
	var err error
	if d.server, err = embedded.Start(embedded.Config{Dir: filepath.Join(d.dir, "store")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.server.Close)
	d.scene = newSceneOn(t, d.server, tallyman.Settings{})
}

// sync keeps a copy of the store. The
// server is down meanwhile, so the copy is what lay on the disk.
func (d *disk) sync(t *testing.T) {
	t.Helper()
	d.server.Kill()
	if err := os.CopyFS(filepath.Join(d.dir, "synced"), os.DirFS(d.server.Dir())); err != nil {
		t.Fatal(err)
	}
	d.start(t)
}

// setBack stops the server hard and puts the older copy of the named streams
// back in place of what was written since.
func (d *disk) setBack(t *testing.T, streams ...string) {
	t.Helper()
	d.server.Kill()
	const in = "jetstream/$G/streams"
	for _, name := range streams {
		to := filepath.Join(d.server.Dir(), in, name)
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(to, os.DirFS(filepath.Join(d.dir, "synced", in, name))); err != nil {
			t.Fatal(err)
		}
	}
	d.start(t)
}

// accept submits commands and returns what the producer was told.
func (d *disk) accept(t *testing.T, from, to int) []audit.Accepted {
	t.Helper()
	var told []audit.Accepted
	for i := from; i <= to; i++ {
		sub, err := d.Submit(t.Context(), tallyman.Command{ID: fmt.Sprintf("c-%d", i), Kind: "echo"})
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, audit.Accepted{ID: sub.ID, Sequence: sub.Sequence})
	}
	return told
}

// against is the list as an audit takes it.
func against(list []audit.Accepted) iter.Seq2[audit.Accepted, error] {
	return func(yield func(audit.Accepted, error) bool) {
		for _, a := range list {
			if !yield(a, nil) {
				return
			}
		}
	}
}

// missing checks that an audit names just these entries of its list as missing,
// and returns what it takes for the cause of each.
func missing(t *testing.T, got audit.Report, want []audit.Accepted) (causes []string) {
	t.Helper()
	var found []audit.Accepted
	for _, m := range got.MissingIDs {
		found = append(found, audit.Accepted{ID: m.ID, Sequence: m.Sequence})
		causes = append(causes, m.Cause)
	}
	if !slices.Equal(found, want) || got.MissingIDCount != uint64(len(want)) {
		t.Errorf("got %d missing ids %v, want %v", got.MissingIDCount, found, want)
	}
	if got.Balanced != (len(want) == 0) {
		t.Errorf("balanced: got %v with %d missing", got.Balanced, len(want))
	}
	return causes
}

// What the server has acknowledged and not synced is lost with the machine:
// nats-server#7564.
func TestRun_StoreSetBackToWhatWasSynced(t *testing.T) {
	t.Parallel()
	const commands, records = "main_commands", "KV_main"
	t.Run("stream and bucket together", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		told := d.accept(t, 1, 6)
		d.work(t, 4)
		d.sync(t)
		told = append(told, d.accept(t, 7, 12)...)
		d.work(t, 9)
		if got := d.audit(t, audit.Options{Against: against(told)}); !got.Balanced || got.Compared != 12 {
			t.Errorf("before: got %+v, want all 12 ids there", got)
		}
		d.setBack(t, commands, records)
		// What remains agrees with itself; only the list shows what is gone.
		if got := d.audit(t, audit.Options{}); !got.Balanced || got.LastSeq != 6 {
			t.Errorf("without the list: got %+v, want balanced books of 6 sequences", got)
		}
		for _, cause := range missing(t, d.audit(t, audit.Options{Against: against(told)}), told[6:]) {
			if !strings.Contains(cause, "the stream ends at sequence 6") {
				t.Errorf("got cause %q, want that the stream ends at sequence 6", cause)
			}
		}
		// The sequences are handed out again, to others.
		d.accept(t, 13, 14)
		causes := missing(t, d.audit(t, audit.Options{Against: against(told)}), told[6:])
		for i, want := range []string{"sequence 7 holds another command", "sequence 8 holds another command", "the stream ends at sequence 8"} {
			if !strings.Contains(causes[i], want) {
				t.Errorf("got cause %q, want %q", causes[i], want)
			}
		}
		// The list is what they can be submitted again from.
		d.accept(t, 7, 12)
		missing(t, d.audit(t, audit.Options{Against: against(told)}), nil)
	})
	t.Run("the stream alone", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		told := d.accept(t, 1, 3)
		d.sync(t)
		told = append(told, d.accept(t, 4, 9)...)
		d.work(t, 6)
		d.setBack(t, commands)
		got := d.audit(t, audit.Options{})
		if got.Balanced || got.Beyond < 6 || got.LastSeq != 3 {
			t.Errorf("without the list: got %+v, want that sequence 6 is on record and the stream ends at 3", got)
		}
		if want := "on record and the stream ends before it"; !strings.Contains(got.Summary(), want) {
			t.Errorf("got summary %q, want %q", got.Summary(), want)
		}
		if got = d.audit(t, audit.Options{Against: against(told)}); got.Compared != 9 || got.Balanced {
			t.Errorf("got %+v, want 9 ids compared", got)
		}
		for _, m := range got.MissingIDs {
			if m.Sequence <= 6 {
				t.Errorf("%q has its outcome on record and is called missing: %s", m.ID, m.Cause)
			}
		}
	})
	t.Run("the bucket alone", func(t *testing.T) {
		t.Parallel()
		d := newDisk(t)
		told := d.accept(t, 1, 3)
		d.work(t, 3)
		d.sync(t)
		told = append(told, d.accept(t, 4, 9)...)
		d.work(t, 9)
		d.setBack(t, records)
		if got, want := d.audit(t, audit.Options{}), []uint64{4, 5, 6, 7, 8, 9}; got.Balanced || !slices.Equal(got.Missing, want) {
			t.Errorf("without the list: got %+v, want sequences %v missing", got, want)
		}
		missing(t, d.audit(t, audit.Options{Against: against(told)}), told[3:])
	})
}

func TestRun_Against(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const n = 2500 // more than two batches
	var told []audit.Accepted
	for i := range n {
		told = append(told, audit.Accepted{ID: fmt.Sprintf("c-%d", i+1)})
	}
	s.submit(t, 1, n)
	s.work(t, 3)
	missing(t, s.audit(t, audit.Options{Against: against(told)}), nil)
	if err := s.commands(t).Purge(t.Context(), jetstream.WithPurgeSubject("main.commands.default.echo.c-2400")); err != nil {
		t.Fatal(err)
	}
	told = append(told, audit.Accepted{ID: "never"}, audit.Accepted{ID: "c-1"})
	got := s.audit(t, audit.Options{Against: against(told), Seal: true})
	for i, cause := range missing(t, got, []audit.Accepted{{ID: "c-2400"}, {ID: "never"}}) {
		if !strings.Contains(cause, "neither stream nor bucket know the id") {
			t.Errorf("missing %d: got cause %q", i, cause)
		}
	}
	if again := s.audit(t, audit.Options{}); again.SealedThrough != 0 {
		t.Errorf("books that do not balance were closed through %d", again.SealedThrough)
	}
	broken := func(yield func(audit.Accepted, error) bool) { yield(audit.Accepted{}, os.ErrClosed) }
	for name, list := range map[string]iter.Seq2[audit.Accepted, error]{
		"a list that cannot be read": broken,
		"an id that cannot be":       against([]audit.Accepted{{ID: ""}}),
	} {
		if _, err := audit.Run(t.Context(), s.Commands(), s.Records(), audit.Options{Against: list}); err == nil {
			t.Errorf("%s: got a report, want an error", name)
		}
	}
}
