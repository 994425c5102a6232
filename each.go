package tallyman

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// Each calls fn for each item in turn, saves progress after every so many of
// them, and begins behind those that earlier attempts have done. So a batch
// that dies with its worker goes on where it was: what may be repeated is the
// item that was under way and at most every-1 before it. An attempt that ends
// with an error, or because ctx ended, saves first and repeats only that item.
//
// The items must be the same, and in the same order, in each attempt: those
// that are done are counted, not remembered. N counts them from 0. A
// checkpoint that the handler saved is kept as it is. Below 1, every counts as 1.
//
// Each returns fn's first error with the item's number, an error of items, or
// what Claim.Progress returned. Make items with Slice, Seq or Lines.
func Each[T any](ctx context.Context, claim *Claim, items iter.Seq2[T, error], every int, fn func(ctx context.Context, n uint64, item T) error) error {
	every = max(every, 1)
	done := claim.position().offset
	saved := done
	save := func() error {
		if done == saved {
			return nil
		}
		saved = done
		return claim.Progress(ctx, done, claim.position().state)
	}
	// give up, but keep what is done; the claim may be gone, which is worse to know
	end := func(err error) error { return errors.Join(err, save()) }
	n := uint64(0)
	for item, err := range items {
		switch {
		case err != nil:
			return end(fmt.Errorf("tallyman: item %d of %q: %w", n, claim.ID(), err))
		case n < done:
			n++
			continue
		case ctx.Err() != nil:
			return end(fmt.Errorf("tallyman: before item %d of %q: %w", n, claim.ID(), context.Cause(ctx)))
		}
		if err := fn(ctx, n, item); err != nil {
			return end(fmt.Errorf("item %d: %w", n, err))
		}
		n++
		if done = n; done-saved >= uint64(every) {
			if err := save(); err != nil {
				return err
			}
		}
	}
	if n < done {
		return fmt.Errorf("tallyman: %s of %q done, and there are only %d: the batch is not the one that was begun", plural.Count(done, "item"), claim.ID(), n)
	}
	return errors.Join(save(), claim.Flush(ctx))
}

// position is the newest point, durable or not.
func (c *Claim) position() point {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest()
}

// Slice yields the elements of a slice, for Each.
func Slice[T any](items []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// Seq yields what an iterator without errors yields, for Each.
func Seq[T any](items iter.Seq[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for item := range items {
			if !yield(item, nil) {
				return
			}
		}
	}
}

// MaxLine is the longest line in bytes that Lines accepts.
const MaxLine = 1 << 20

// Lines yields the lines of r without their ends, for Each. A last line
// without an end counts. A line longer than MaxLine is an error. It can be
// ranged over once.
func Lines(r io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, MaxLine)
		for lines.Scan() {
			if !yield(lines.Text(), nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield("", err)
		}
	}
}
