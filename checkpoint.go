package tallyman

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// pace says which calls of Progress are written at once, and which may wait
// for a later one. The zero value writes each.
type pace struct {
	every time.Duration // at most one write in this time
	count int           // or one for so many calls; whichever comes first

	// Owned by the claim, under its mutex.
	last time.Time // of the last write
	held int       // calls since
}

// due reports whether the call that is being made has to be written.
func (p *pace) due() bool {
	if p.every <= 0 && p.count <= 1 || p.last.IsZero() {
		return true
	}
	return p.every > 0 && time.Since(p.last) >= p.every || p.count > 1 && p.held >= p.count
}

func (p *pace) wrote() { p.last, p.held = time.Now(), 0 }

// Progress saves how far the work has got. When it returns nil, offset and
// state are durable, and whoever takes the command over resumes there. It
// costs one round trip to the server.
//
// A route with SaveEvery or SaveCount lets calls in between wait for a later
// one: those return at once, and are durable only after the next write, after
// Flush, or with the record that ends the attempt. What a crash may lose, and
// the next attempt repeat, is bounded by that setting.
//
// Offset must not be smaller than the last one. Progress also says that the
// effect of a Prepare before it has happened, and closes its intent.
//
// An error that wraps ErrLeaseLost means that someone else owns the command
// now: stop. ErrTooLarge means that state does not fit into one server
// message; nothing was saved, and nothing cut.
func (c *Claim) Progress(ctx context.Context, offset uint64, state []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.newest()
	if offset < at.offset {
		return fmt.Errorf("tallyman: progress of %q: offset %d lies before the saved %d", c.cmd.ID, offset, at.offset)
	}
	next := point{offset: offset, state: slices.Clone(state)}
	if err := c.fits(next); err != nil {
		return err
	}
	if c.pace.held++; c.durable.intent == nil && !c.pace.due() {
		c.ahead = &next
		if ctx.Err() != nil {
			return fmt.Errorf("tallyman: progress of %q: %w", c.cmd.ID, context.Cause(ctx))
		}
		return nil
	}
	return c.saveLocked(ctx, next)
}

// Flush writes what the route's SaveEvery or SaveCount has held back, if
// anything. Errors are those of Progress.
func (c *Claim) Flush(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead == nil {
		return nil
	}
	return c.saveLocked(ctx, *c.ahead)
}

// Prepare announces an effect on the outside world that must not be repeated:
// a payment, a mail. When it returns nil, the intent is durable: cause the
// effect now, and return. It costs one round trip to the server.
//
// If the worker dies, loses the lease or fails the attempt from then on, the
// handler is not run again on a guess: the route's Confirm finds out what
// became of the effect, and without one the command is parked as uncertain,
// with the intent. Success, Progress and Withdraw close the intent.
//
// The token fences the effect: it grows with every takeover, so an outside
// system that refuses a smaller token than one it has seen cannot be reached
// by a holder that was replaced while it was frozen.
//
// If Prepare returns an error, do not cause the effect; errors are those of
// Progress. Intent should say what a person needs to look the effect up. A
// second Prepare replaces the first, whose effect counts as having happened.
func (c *Claim) Prepare(ctx context.Context, intent []byte) (token uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.newest()
	next := point{offset: at.offset, state: at.state, intent: append([]byte{}, intent...)}
	if err := c.fits(next); err != nil {
		return 0, err
	}
	if err := c.saveLocked(ctx, next); err != nil {
		return 0, err
	}
	return c.token, nil
}

// Withdraw closes the intent of a Prepare, because its effect has not happened
// and will not: the outside system refused it. The command may then be tried
// again like any other. Without an open intent it does nothing. Errors are
// those of Progress.
func (c *Claim) Withdraw(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.durable.intent == nil {
		return nil
	}
	at := c.newest()
	return c.saveLocked(ctx, point{offset: at.offset, state: at.state, note: "the effect did not happen"})
}

// newest is the last point that the handler gave, durable or not.
func (c *Claim) newest() point {
	if c.ahead != nil {
		return *c.ahead
	}
	return c.durable
}

// fits refuses what would not fit into the records that are still to come.
func (c *Claim) fits(p point) error {
	if n := len(p.state) + len(p.intent); c.limit > 0 && n > c.limit {
		return fmt.Errorf("tallyman: %s of %q: %w: state and intent have %d bytes, the limit is %d; store the body elsewhere and save a reference", p.what(), c.cmd.ID, ErrTooLarge, n, c.limit)
	}
	return nil
}

func (c *Claim) saveLocked(ctx context.Context, p point) error {
	token, err := c.saver.save(ctx, c, &p)
	if err != nil {
		return err
	}
	c.token, c.durable, c.ahead = token, p, nil
	c.pace.wrote()
	return nil
}

// what names the act of saving p, for errors.
func (p point) what() string {
	switch {
	case p.intent != nil:
		return "prepare"
	case p.note != "":
		return "withdraw the intent"
	}
	return fmt.Sprintf("progress at offset %d", p.offset)
}
