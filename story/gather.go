package story

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Options of Gather. The zero value is useful.
type Options struct {
	Terms Terms
	// Scan looks through the whole bucket for copies that were filed under
	// their sequence, and takes as long as the bucket is large.
	Scan bool

	// Of a sharded pool, Intake is the stream where commands arrive that were
	// published by hand, if it is not the one of the command, and RecordsOf tells
	// in which bucket another command's record lies. Both may be nil.
	Intake    *stream.Stream
	RecordsOf func(command.Token) *kvstate.Store
	// Shard is which of how many the stream and the bucket are; keys of what was
	// parked aside are spelled with it.
	Shard, Shards int
}

// maxSeqs bounds the sequences of one command that are looked for in the stream.
const maxSeqs = 64

// Gather reads what stream and bucket hold about the command with this id. It
// returns ErrNotFound, with what was looked for, if that is nothing.
func Gather(ctx context.Context, commands *stream.Stream, records *kvstate.Store, id string, opts Options) (Evidence, error) {
	token, err := dedupe.Token(id)
	if err != nil {
		return Evidence{}, err
	}
	g := newGathering(commands, records, id, token, opts)
	for _, read := range []func(context.Context) error{g.readIntake, g.readRecord, g.readNotes, g.readCopies, g.readAgain, g.readFiled, g.readParent} {
		if err := read(ctx); err != nil {
			return Evidence{}, fmt.Errorf("story: gather what is known of %q: %w", id, err)
		}
	}
	if opts.Scan {
		if err := g.scan(ctx); err != nil {
			return Evidence{}, fmt.Errorf("story: gather what is known of %q: %w", id, err)
		}
	}
	if g.Entry.Revision == 0 && len(g.Copies)+len(g.Notes)+len(g.Filed) == 0 && g.Intake == nil {
		return Evidence{}, fmt.Errorf("command %q: %w: no record under the key %s, no command with the subject %s, no note under %s%s; it was never submitted, or everything about it has expired",
			id, ErrNotFound, token, commands.Subject("*", "*", token), kvstate.NoteKey(token, "*"), unscanned(opts.Scan))
	}
	return g.Evidence, nil
}

func unscanned(scanned bool) string {
	if scanned {
		return ", no copy filed under a sequence"
	}
	return ""
}

// gathering is one Gather under way.
type gathering struct {
	Evidence
	commands *stream.Stream
	records  *kvstate.Store
	token    command.Token
	opts     Options
	queues   map[string]stream.Queue // as they were met
}

func newGathering(commands *stream.Stream, records *kvstate.Store, id string, token command.Token, opts Options) *gathering {
	if opts.RecordsOf == nil {
		opts.RecordsOf = func(command.Token) *kvstate.Store { return records }
	}
	return &gathering{
		commands: commands, records: records, opts: opts, token: token, queues: map[string]stream.Queue{},
		Evidence: Evidence{ID: id, Asked: time.Now(), Terms: opts.Terms, Shard: opts.Shard, Shards: opts.Shards},
	}
}

// readIntake looks for the command where it may wait to be carried into its own
// shard. First of all: from there it goes to where is looked next.
func (g *gathering) readIntake(ctx context.Context) error {
	if g.opts.Intake == nil {
		return nil
	}
	s, err := g.opts.Intake.Find(ctx, g.token)
	switch {
	case errors.Is(err, stream.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	g.Evidence.Intake = &Copy{Seq: s.Seq, At: s.At, Queue: s.Queue, Kind: s.Kind}
	return nil
}

func (g *gathering) readRecord(ctx context.Context) (err error) {
	if g.Entry, err = g.records.Read(ctx, g.token); err != nil {
		return err
	}
	all, err := g.records.Revisions(ctx, g.token)
	if err != nil {
		return err
	}
	g.Earlier = slices.DeleteFunc(all, func(e kvstate.Entry) bool { return e.Raw == nil || e.Revision >= g.Entry.Revision })
	return nil
}

func (g *gathering) readNotes(ctx context.Context) (err error) {
	g.Notes, g.NotesLeft, err = g.records.Notes(ctx, g.token)
	return err
}

// readCopies looks for stored commands: the newest with the id, and every
// sequence that the record or a note names.
func (g *gathering) readCopies(ctx context.Context) error {
	var seqs []uint64
	if r := g.record(); r != nil {
		seqs = append(seqs, r.Seqs...)
	}
	for _, n := range g.Notes {
		if n.Seq > 0 {
			seqs = append(seqs, n.Seq)
		}
	}
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	if len(seqs) > maxSeqs {
		seqs = seqs[len(seqs)-maxSeqs:]
	}
	s, err := g.commands.Find(ctx, g.token)
	if err == nil && s.Token == g.token {
		err = g.copied(ctx, s)
	}
	if err != nil && !errors.Is(err, stream.ErrNotFound) {
		return err
	}
	for _, seq := range seqs {
		if err := g.addCopy(ctx, seq); err != nil {
			return err
		}
	}
	slices.SortFunc(g.Copies, func(a, b Copy) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return nil
}

// addCopy adds the command at seq, if it is there and the story's.
func (g *gathering) addCopy(ctx context.Context, seq uint64) error {
	s, err := g.commands.Get(ctx, seq)
	if errors.Is(err, stream.ErrNotFound) || err == nil && s.Token != g.token && !g.aside() {
		return nil // left the stream, or a note lies
	}
	if err != nil {
		return err
	}
	return g.copied(ctx, s)
}

func (g *gathering) copied(ctx context.Context, s stream.Stored) error {
	if slices.ContainsFunc(g.Copies, func(c Copy) bool { return c.Seq == s.Seq }) {
		return nil
	}
	q, known := g.queues[s.Queue]
	if !known {
		var err error
		q, err = g.commands.Queue(ctx, s.Queue)
		if err != nil && !errors.Is(err, stream.ErrNoQueue) {
			return err
		}
		g.queues[s.Queue] = q // of a queue without a consumer: nothing was delivered
	}
	c := Copy{Seq: s.Seq, At: s.At, Queue: s.Queue, Kind: s.Kind, Delivered: DeliveredNever, Paused: q.Paused, Unserved: q.Name == ""}
	if s.Seq <= q.Delivered {
		c.Delivered = DeliveredOnce
	}
	if c.Acked = s.Seq <= q.Over; c.Acked {
		fate, err := g.records.FateOf(ctx, kvstate.Lying{Seq: s.Seq, Token: s.Token})
		if err != nil {
			return err
		}
		c.Settled = fate.Accounted
	}
	g.Copies = append(g.Copies, c)
	return nil
}

// readAgain reads the record once more if it may have been written, and the
// command have left the stream, since it was read.
func (g *gathering) readAgain(ctx context.Context) error {
	if r := g.record(); len(g.pendingCopies()) > 0 || r != nil && r.State.Terminal() {
		return nil
	}
	return g.readRecord(ctx)
}

// readFiled reads the entries that notes and the record point to.
func (g *gathering) readFiled(ctx context.Context) error {
	var keys []command.Token
	for _, n := range g.Notes {
		if beside(n.Entry) {
			keys = append(keys, n.Entry)
		}
	}
	if r := g.record(); r != nil {
		for n := range r.FollowUps {
			keys = append(keys, kvstate.FollowUpConflictKey(g.token, n+1))
		}
	}
	for _, e := range g.Earlier {
		if e.Err != nil {
			keys = append(keys, kvstate.CorruptKey(g.token, e.Revision))
		}
	}
	slices.Sort(keys)
	for batch := range slices.Chunk(slices.Compact(keys), kvstate.MaxBatch) {
		found, err := g.records.Newest(ctx, batch, 0)
		if err != nil {
			return err
		}
		for _, e := range found {
			g.file(e)
		}
	}
	return nil
}

// beside reports whether key looks like that of an entry beside a record. Notes
// are read from the bucket, and whoever may write there may write anything.
func beside(key command.Token) bool {
	return besideKey.MatchString(string(key))
}

var besideKey = regexp.MustCompile(`^_(absorbed|malformed|conflict|corrupt)/[A-Za-z0-9=/_-]+$`)

func (g *gathering) file(e kvstate.Entry) {
	if e.Raw == nil {
		return
	}
	if !g.filed(e.Key) {
		g.Filed = append(g.Filed, e)
	}
}

// scan looks through the bucket for what was filed.
func (g *gathering) scan(ctx context.Context) error {
	corrupt := string(kvstate.CorruptKey(g.token, 0))
	corrupt = strings.TrimSuffix(corrupt, "0")
	err := g.records.Scan(ctx, func(e kvstate.Entry) error {
		_, absorbed := kvstate.AbsorbedSeq(e.Key)
		switch {
		case absorbed && string(e.Raw) == g.ID,
			e.Key != g.token && e.Record != nil && e.Record.ID == g.ID,
			strings.HasPrefix(string(e.Key), corrupt):
			g.file(e)
		}
		return nil
	})
	g.Scanned = err == nil
	return err
}

// readParent looks for the command whose follow-up this one may be.
func (g *gathering) readParent(ctx context.Context) error {
	at := strings.LastIndexByte(g.ID, '/')
	if at <= 0 {
		return nil
	}
	key, err := dedupe.Token(g.ID[:at])
	if err != nil {
		return nil //nolint:nilerr // what precedes the slash is no id, so there is no parent
	}
	e, err := g.opts.RecordsOf(key).Read(ctx, key)
	if err != nil {
		return err
	}
	if r := e.Record; r != nil && slices.ContainsFunc(r.FollowUps, func(c command.Command) bool { return c.ID == g.ID }) {
		g.Parent = r
	}
	return nil
}
