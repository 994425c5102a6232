package tallyman

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
)

// Command is what was asked; see [command.Command].
type Command = command.Command

// Result is what a handler achieved. It becomes part of the receipt, so it
// has to fit into one server message together with its follow-ups.
type Result struct {
	Body        []byte
	ContentType string // empty: not stated
}

// Handler does the work of one kind. Handle may be called from many goroutines
// at once, and more than once for the same command: after a crash, a lost
// lease or a failed attempt it is called again, with Claim.Attempt one higher.
//
// A nil error completes the command. Any other error is a failed attempt,
// unless it is made by [Reject], [RetryAfter] or [Uncertain]. A panic is a
// failed attempt. Handle must return soon after ctx ends; context.Cause(ctx)
// says why it did ([ErrLeaseLost], [ErrDraining], [ErrTimeout], [ErrCancelled]).
type Handler interface {
	Handle(ctx context.Context, claim *Claim) (Result, error)
}

// HandlerFunc makes a Handler of a function.
type HandlerFunc func(ctx context.Context, claim *Claim) (Result, error)

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, claim *Claim) (Result, error) { return f(ctx, claim) }

// Confirm finds out what became of an effect, from the outside system alone: it
// must not cause it. Intent is what Claim.Prepare saved. It runs under the
// claim of the next attempt, within its timeout, and may be called again.
//
// An error means that this could not be found out now: it is a failed attempt,
// and the next one asks again. When the attempts are used up, the command is
// parked as uncertain.
//
// Where the effect is one of many, as in a batch, Done would complete the
// command with the others undone: call Claim.Progress, which says that this
// one happened, and return NotDone.
type Confirm func(ctx context.Context, claim *Claim, intent []byte) (Finding, Result, error)

// Finding is what Confirm found out.
type Finding int

// The findings.
const (
	// Unknown: nobody can tell. The command is parked as uncertain.
	Unknown Finding = iota
	// Done: the effect happened. The command completes with the result.
	Done
	// NotDone: it did not happen, and will not. The handler runs, unless the
	// command's NotAfter has passed: then it is parked as expired.
	NotDone
)

// Route says how commands of a kind are handled.
type Route struct {
	// Kind is an exact kind, or a glob of path.Match such as "invoice-*".
	// An exact kind wins over a glob, a longer glob over a shorter one.
	Kind string
	// Handler does the work. Required.
	Handler Handler
	// Timeout bounds one attempt; its context then ends with ErrTimeout.
	// 0 means no limit: the lease is kept alive for as long as the handler runs.
	Timeout time.Duration
	// MaxAttempts overrides the pool's setting when greater than 0.
	MaxAttempts int
	// Confirm finds out what became of an effect that Claim.Prepare announced,
	// once the attempt that did so ended without a receipt. Without it such a
	// command is parked as uncertain.
	Confirm Confirm
	// SaveEvery and SaveCount let calls of Claim.Progress gather: one is
	// written at most every SaveEvery, or every SaveCount calls, whichever
	// comes first. 0 for both, the default, writes every call.
	SaveEvery time.Duration
	SaveCount int
	// Eager writes the claim before the first attempt too, so that
	// Claim.Token is never 0. It costs one write per command; ask for it when
	// the token goes to an outside system as a fencing token.
	Eager bool
}

// Mux finds the route of a kind. The zero value is empty and ready. Add every
// route before the worker runs; lookups are then safe for concurrent use.
type Mux struct {
	exact map[string]*Route
	globs []*Route
}

// Handle adds a handler for a kind with default options. Like its namesake in
// net/http it panics on a kind that is invalid or taken.
func (m *Mux) Handle(kind string, h Handler) {
	if err := m.Route(Route{Kind: kind, Handler: h}); err != nil {
		panic(err)
	}
}

// Route adds a route. It returns an error if the kind is no valid name or
// glob, already has a route, or the handler is nil.
func (m *Mux) Route(r Route) error {
	if r.Handler == nil {
		return fmt.Errorf("tallyman: route %q has no handler", r.Kind)
	}
	if r.Timeout < 0 || r.MaxAttempts < 0 || r.SaveEvery < 0 || r.SaveCount < 0 {
		return fmt.Errorf("tallyman: route %q: timeout, max attempts, save every and save count must not be negative", r.Kind)
	}
	if isGlob(r.Kind) {
		if _, err := path.Match(r.Kind, "x"); err != nil || strings.Contains(r.Kind, "/") {
			return fmt.Errorf("tallyman: route %q is no valid glob; see path.Match", r.Kind)
		}
		for _, g := range m.globs {
			if g.Kind == r.Kind {
				return fmt.Errorf("tallyman: route %q is there already", r.Kind)
			}
		}
		m.globs = append(m.globs, &r)
		return nil
	}
	if err := command.ValidateName("kind", r.Kind); err != nil {
		return fmt.Errorf("tallyman: add route: %w", err)
	}
	if m.exact == nil {
		m.exact = make(map[string]*Route)
	}
	if m.exact[r.Kind] != nil {
		return fmt.Errorf("tallyman: route %q is there already", r.Kind)
	}
	m.exact[r.Kind] = &r
	return nil
}

// Kinds lists the kinds and globs that have a route, in no particular order.
func (m *Mux) Kinds() []string {
	kinds := make([]string, 0, len(m.exact)+len(m.globs))
	for k := range m.exact {
		kinds = append(kinds, k)
	}
	for _, g := range m.globs {
		kinds = append(kinds, g.Kind)
	}
	return kinds
}

// Pattern returns the kind or glob of the route that handles kind, empty if
// there is none. Unlike kinds, patterns are few: use them to label metrics.
func (m *Mux) Pattern(kind string) string {
	if r := m.lookup(kind); r != nil {
		return r.Kind
	}
	return ""
}

// lookup returns the route of kind, or nil.
func (m *Mux) lookup(kind string) *Route {
	if r := m.exact[kind]; r != nil {
		return r
	}
	var best *Route
	for _, g := range m.globs {
		if ok, _ := path.Match(g.Kind, kind); ok && (best == nil || len(g.Kind) > len(best.Kind)) {
			best = g
		}
	}
	return best
}

func isGlob(s string) bool { return strings.ContainsAny(s, `*?[\`) }
