package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// Accepted is a command that a producer was told was accepted.
type Accepted struct {
	ID       string
	Sequence uint64 // as the producer was told; 0 if not known
}

const (
	// compareBatch is how many ids are compared at a time, which bounds memory.
	compareBatch = kvstate.MaxBatch
	// compareAtOnce is how many of a batch are looked for in the stream at once.
	compareAtOnce = 32
)

// compare looks up every entry of a list in the books of its shard. A command
// that has no record is in the stream; one that is settled between the two looks
// has its record then.
func compare(ctx context.Context, shards []*books, list iter.Seq2[Accepted, error]) error {
	batches := make([][]listed, len(shards))
	for a, err := range list {
		if err != nil {
			return fmt.Errorf("audit: read the list of accepted ids: %w", err)
		}
		token, err := dedupe.Token(a.ID)
		if err != nil {
			return fmt.Errorf("audit: list of accepted ids: %w", err)
		}
		at := dedupe.Shard(token, len(shards))
		batches[at] = append(batches[at], listed{a, token})
		if len(batches[at]) == compareBatch {
			if err := shards[at].compareSome(ctx, batches[at]); err != nil {
				return err
			}
			batches[at] = batches[at][:0]
		}
	}
	for at, batch := range batches {
		if len(batch) == 0 {
			continue
		}
		if err := shards[at].compareSome(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// listed is an entry of the list with its key.
type listed struct {
	Accepted
	token command.Token
}

func (b *books) compareSome(ctx context.Context, batch []listed) error {
	b.report.Compared += uint64(len(batch))
	keys := make([]command.Token, len(batch))
	for i, l := range batch {
		keys[i] = l.token
	}
	entries, err := b.records.ReadManyWait(ctx, keys)
	for again := 1; again < looks && errors.Is(err, kvstate.ErrIndeterminate); again++ {
		entries, err = b.records.ReadManyWait(ctx, keys) // a record was replaced under the answer
	}
	if err != nil {
		return fmt.Errorf("audit: compare: %w", err)
	}
	causes, errs := make([]string, len(batch)), make([]error, len(batch))
	var looking sync.WaitGroup
	turns := make(chan struct{}, compareAtOnce)
	for i := range batch {
		if known(entries[i]) {
			continue
		}
		turns <- struct{}{}
		looking.Go(func() {
			causes[i], errs[i] = b.look(ctx, batch[i])
			<-turns
		})
	}
	looking.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("audit: compare: %w", err)
	}
	for i, cause := range causes {
		if cause != "" {
			list(&b.report.MissingIDs, &b.report.MissingIDCount, MissingID{ID: batch[i].ID, Sequence: batch[i].Sequence, Cause: cause})
			b.report.Balanced = false
		}
	}
	return nil
}

// known reports whether an entry shows that the pool knows the command. A
// damaged record does; it is a finding of its own.
func known(e kvstate.Entry) bool { return e.Raw != nil }

// look asks the leaders for a command without a record. It returns why the
// command is likely gone, or nothing if it is there.
func (b *books) look(ctx context.Context, l listed) (cause string, err error) {
	if l.Sequence > 0 && b.stored.has(l.Sequence) {
		// Most are where they were put, and there the server need not search.
		if there, err := b.commands.Get(ctx, l.Sequence); err == nil && there.Token == l.token {
			return "", nil
		}
	}
	for _, in := range []*stream.Stream{b.intake, b.commands} { // it goes from the first into the second
		if in == nil {
			continue
		}
		_, err = in.Find(ctx, l.token)
		if err == nil {
			return "", nil
		}
		if !errors.Is(err, stream.ErrNotFound) {
			return "", fmt.Errorf("look for %q in the stream: %w", l.ID, err)
		}
	}
	// It may have been settled since the batch was read, or a replica was behind.
	e, err := b.records.Read(ctx, l.token)
	if err != nil {
		return "", fmt.Errorf("look for the record of %q: %w", l.ID, err)
	}
	if known(e) {
		return "", nil
	}
	return b.cause(ctx, l)
}

// cause guesses why a command is gone from what became of its sequence.
func (b *books) cause(ctx context.Context, l listed) (string, error) {
	const setBack = "an older copy of the store was put back, or the machine failed before what it had accepted was on disk"
	r, where := &b.report, ""
	if b.shards > 1 { // each counts its own
		where = fmt.Sprintf(" of shard %d", b.shard)
	}
	if l.Sequence == 0 {
		return "neither stream nor bucket know the id: it was never accepted by this pool, or deleted by hand, or its receipt has expired, or " + setBack, nil
	}
	if l.Sequence > r.LastSeq {
		return fmt.Sprintf("the stream%s ends at sequence %d: %s", where, r.LastSeq, setBack), nil
	}
	other, err := b.commands.Get(ctx, l.Sequence)
	switch {
	case err == nil:
		return fmt.Sprintf("sequence %d%s holds another command, %q, now: %s, and went on from there", l.Sequence, where, other.Token, setBack), nil
	case !errors.Is(err, stream.ErrNotFound):
		return "", fmt.Errorf("look for sequence %d: %w", l.Sequence, err)
	case l.Sequence <= r.SealedThrough:
		return fmt.Sprintf("the books%s are sealed through sequence %d: its receipt has expired, if it was accepted longer ago than receipts are kept", where, r.SealedThrough), nil
	case b.accounted.has(l.Sequence):
		return fmt.Sprintf("sequence %d%s belongs to another command, by its record: %s, and went on from there", l.Sequence, where, setBack), nil
	}
	return "it was deleted by hand from the stream, or its record from the bucket, or its receipt has expired", nil
}
