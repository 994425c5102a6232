package story

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// GatherAside reads what stream and bucket of a shard hold about a record that
// was parked aside, given its key there: a message that did not decode, or a
// command whose id stands for another one. It returns ErrNotFound if there is none.
func GatherAside(ctx context.Context, commands *stream.Stream, records *kvstate.Store, key command.Token, opts Options) (Evidence, error) {
	g := newGathering(commands, records, desk.Key(opts.Shard, opts.Shards, key), key, opts)
	g.Scanned = true // nothing is filed beside it
	for _, read := range []func(context.Context) error{g.readRecord, g.readAsideNotes, g.readAsideCopies, g.readNamesake} {
		if err := read(ctx); err != nil {
			return Evidence{}, fmt.Errorf("story: gather what is known of %q: %w", g.ID, err)
		}
	}
	if g.Entry.Revision == 0 || !kvstate.Aside(key) {
		return Evidence{}, fmt.Errorf("%q: %w: nothing was parked under that key of bucket %s, or it was given up and has expired", g.ID, ErrNotFound, records.Bucket())
	}
	return g.Evidence, nil
}

// readAsideNotes finds the note of whoever parked it, which knows when the
// message was stored. It lies with the id.
func (g *gathering) readAsideNotes(ctx context.Context) error {
	r := g.record()
	if r == nil {
		return nil
	}
	token, err := dedupe.Token(r.ID)
	if err != nil {
		return nil //nolint:nilerr // what did not decode may have no id
	}
	notes, _, err := g.opts.RecordsOf(token).Notes(ctx, token)
	g.Notes = slices.DeleteFunc(notes, func(n kvstate.Note) bool {
		return n.Entry != g.token || n.Stream != "" && n.Stream != g.commands.Name()
	})
	return err
}

// readAsideCopies looks whether the message is still in the stream.
func (g *gathering) readAsideCopies(ctx context.Context) error {
	r := g.record()
	if r == nil {
		return nil
	}
	for _, seq := range r.Seqs {
		if err := g.addCopy(ctx, seq); err != nil {
			return err
		}
	}
	return nil
}

// readNamesake finds the record that the id stands for.
func (g *gathering) readNamesake(ctx context.Context) error {
	r := g.record()
	if r == nil || r.Reason != kvstate.ReasonConflict {
		return nil
	}
	token, err := dedupe.Token(r.ID)
	if err != nil {
		return nil //nolint:nilerr // no id, and nothing that it stands for
	}
	e, err := g.opts.RecordsOf(token).Read(ctx, token)
	g.Namesake = e.Record
	return err
}

// aside reports whether the story is that of a record which was parked aside.
func (e *Evidence) aside() bool { return kvstate.Aside(e.Entry.Key) }

// key spells the key of an entry as acts take it.
func (e *Evidence) key(key command.Token) string {
	if kvstate.Aside(key) {
		return desk.Key(e.Shard, e.Shards, key)
	}
	return string(key)
}

// tellAside says what was parked aside.
func (t *telling) tellAside() {
	if r := t.record(); t.aside() && r != nil {
		t.add(time.Time{}, Event{Source: SourceRecord, What: "aside", Text: t.asideText(r)})
	}
}

func (t *telling) asideText(r *kvstate.Record) string {
	origin, number := parent(t.Entry.Key)
	text := "It is a message that did not decode as a command."
	switch {
	case strings.HasPrefix(origin, "_journal/"):
		run, decision, _ := strings.Cut(strings.TrimPrefix(origin, "_journal/"), "/")
		text = fmt.Sprintf("It is command %d of decision %s of the run %s of the journal, with the id %s, and could not be submitted.", number, word(decision), quote(idOf(command.Token(run))), quote(r.ID))
	case origin != "":
		text = fmt.Sprintf("It is follow-up %d of %s, with the id %s, and could not be born.", number, quote(idOf(command.Token(origin))), quote(r.ID))
	case r.Reason == kvstate.ReasonConflict:
		text = fmt.Sprintf("It is a command of kind %s with the id %s.", word(r.Kind), quote(r.ID))
	}
	if n := t.Namesake; n != nil {
		text += fmt.Sprintf(" That id stands for another command, of kind %s, which is %s.", word(n.Kind), word(string(n.State)))
	} else if r.Reason == kvstate.ReasonConflict {
		text += " That id stood for another command, which is not on record any more, or has not ended."
	}
	return text
}

// parent takes the key of a follow-up, or of a decision's command, apart.
func parent(key command.Token) (of string, number int) {
	number, ok := followUp(key)
	if !ok {
		return "", 0
	}
	rest := strings.TrimPrefix(string(key), "_conflict/")
	return strings.TrimSuffix(rest, "/"+strconv.Itoa(number)), number
}

func idOf(token command.Token) string {
	if id, err := dedupe.ParseToken(token); err == nil {
		return id
	}
	return string(token)
}

// asideVerdict says what may be done with it.
func (t *telling) asideVerdict(r *kvstate.Record) string {
	text := t.standing(r) + options(r, true)
	if r.State != kvstate.Parked {
		return text
	}
	if text += " It cannot run as it is"; r.Reason == kvstate.ReasonConflict {
		return text + ": what it asks for is submitted under another id."
	}
	return text + ": what it was meant to be is submitted anew."
}
