package tallyman

import (
	"context"
	"fmt"
	"slices"

	"github.com/tallyman-go/tallyman/command"
)

// Claim is what a handler sees: the command, how often it was tried, how far
// it got, and the token that fences its effects. Its methods are safe for
// concurrent use. A Claim must not be used after its handler has returned.
type Claim struct {
	cmd     *command.Command
	attempt int
	saver   saver
	pace    pace
	limit   int // of state and intent together, in bytes; 0 for none
	largest int // payload of a follow-up, in bytes; 0 for any

	mu        turn // while something is being saved, for as long as that takes
	token     uint64
	durable   point  // what is stored
	ahead     *point // progress that the pace has held back, nil if none
	followUps []command.Command
}

// point is what a claim makes durable: how far the work has got and, with an
// intent, what is about to happen to the outside world.
type point struct {
	offset uint64
	state  []byte
	intent []byte // nil if none is open
	note   string // for the trail
}

// saver makes a point durable and returns the fencing token that now holds.
// Where an earlier point turns out to be durable after all that lies further
// on, it moves p there. It is called with the claim's mutex held, so calls
// never overlap.
type saver interface {
	save(ctx context.Context, c *Claim, p *point) (token uint64, err error)
}

// ID returns the command's id.
func (c *Claim) ID() string { return c.cmd.ID }

// Kind returns the command's kind, which under a glob route tells which it is.
func (c *Claim) Kind() string { return c.cmd.Kind }

// Queue returns the queue that the command came through.
func (c *Claim) Queue() string { return c.cmd.Queue }

// Payload returns the payload as it was submitted. Do not modify it.
func (c *Claim) Payload() []byte { return c.cmd.Payload }

// ContentType returns what the producer stated about the payload; may be empty.
func (c *Claim) ContentType() string { return c.cmd.ContentType }

// Attempt returns 1 for the first attempt and grows by one with each further one.
func (c *Claim) Attempt() int { return c.attempt }

// Token returns the fencing token: a number that grows with every takeover.
// Give it to outside systems that can refuse an older token than one they
// have seen. It is 0 until the claim was first written, which a route with
// Eager has done before Handle is called, and Progress does on its first call.
func (c *Claim) Token() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// Offset returns the last durable offset: where an earlier attempt got to, or
// what this one has saved since. 0 means from the start.
func (c *Claim) Offset() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.durable.offset
}

// Checkpoint returns the state saved with Offset, nil if there is none. Do not
// modify it.
func (c *Claim) Checkpoint() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.durable.state
}

// FollowUp asks for commands that are born with this command's receipt: they
// exist if and only if the command completes. A follow-up without an ID gets
// "<id>/<n>", n counting from 1. It returns an error, and adds none of them,
// if one is invalid or, with ErrTooLarge, could never be submitted.
func (c *Claim) FollowUp(commands ...Command) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	added := slices.Clone(commands)
	for i := range added {
		if added[i].ID == "" {
			added[i].ID = fmt.Sprintf("%s/%d", c.cmd.ID, len(c.followUps)+i+1)
		}
		if err := added[i].Validate(); err != nil {
			return fmt.Errorf("tallyman: follow-up %d of %q: %w", len(c.followUps)+i+1, c.cmd.ID, err)
		}
		if n := len(added[i].Payload); c.largest > 0 && n > c.largest {
			return fmt.Errorf("tallyman: follow-up %d of %q: %w: the payload has %d bytes, the limit is %d; store the body elsewhere and submit a reference", len(c.followUps)+i+1, c.cmd.ID, ErrTooLarge, n, c.largest)
		}
	}
	c.followUps = append(c.followUps, added...)
	return nil
}

// FollowUps returns the follow-ups asked for so far.
func (c *Claim) FollowUps() []Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.followUps)
}

// DetachedConfig describes a claim that no server knows of.
type DetachedConfig struct {
	Command    Command
	Attempt    int // 0 means 1
	Token      uint64
	Offset     uint64
	Checkpoint []byte
	// OnProgress, if set, is called by Claim.Progress, whose error it decides.
	OnProgress func(offset uint64, state []byte) error
	// OnPrepare, if set, is called by Claim.Prepare, whose error it decides.
	OnPrepare func(intent []byte) error
}

// Detached returns a claim for testing a handler without a pool. What it saves
// is kept in the claim alone.
func Detached(cfg DetachedConfig) *Claim {
	return &Claim{
		cmd: &cfg.Command, attempt: max(cfg.Attempt, 1), saver: detached{cfg},
		token: cfg.Token, durable: point{offset: cfg.Offset, state: cfg.Checkpoint},
	}
}

type detached struct{ cfg DetachedConfig }

func (d detached) save(_ context.Context, c *Claim, p *point) (uint64, error) {
	var err error
	switch {
	case p.intent != nil && d.cfg.OnPrepare != nil:
		err = d.cfg.OnPrepare(p.intent)
	case p.intent == nil && d.cfg.OnProgress != nil:
		err = d.cfg.OnProgress(p.offset, p.state)
	}
	if err != nil {
		return 0, err
	}
	return c.token, nil
}
