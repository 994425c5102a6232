package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/tallyman-go/tallyman"
)

// exitNotDone is the status with which a confirm program says that the effect
// did not happen (EX_NOINPUT of sysexits.h). It is one that no program ends
// with by accident, since an accident must not be taken for knowledge.
const exitNotDone = 66

// headerFinding is the header in which a confirm endpoint answers.
const headerFinding = "Tallyman-Finding"

// findings are the values of headerFinding.
var findings = map[string]tallyman.Finding{
	"done": tallyman.Done, "not-done": tallyman.NotDone, "unknown": tallyman.Unknown,
}

// announced announces each run of a handler before it begins, so that one which
// nobody knows the end of is confirmed, and not repeated.
type announced struct {
	tallyman.Handler
	intent string
}

// Handle runs the handler once its intent is saved. A run that certainly has
// not begun withdraws the intent.
func (a announced) Handle(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
	if _, err := claim.Prepare(ctx, []byte(a.intent)); err != nil {
		return tallyman.Result{}, err
	}
	result, err := a.Handler.Handle(ctx, claim)
	if notBegun(err) {
		err = errors.Join(err, claim.Withdraw(ctx))
	}
	return result, err
}

// startError is that a program could not be started.
type startError struct{ error }

func (e startError) Unwrap() error { return e.error }

// notBegun reports whether err says that neither a program was started nor a
// connection made.
func notBegun(err error) bool {
	if errors.As(err, new(startError)) {
		return true
	}
	op := (*net.OpError)(nil)
	return errors.As(err, &op) && op.Op == "dial"
}

// Confirm runs the program to find out what became of an effect; see
// tallyman.Confirm. It gets what a handler gets, and the intent in
// TALLYMAN_INTENT. Exit status 0 means done, with stdout as the result, 66 not
// done, 65 unknown, anything else that it could not be found out now.
func (e *Exec) Confirm(ctx context.Context, claim *tallyman.Claim, intent []byte) (tallyman.Finding, tallyman.Result, error) {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return tallyman.Unknown, tallyman.Result{}, errors.New("runner: no program to confirm with; Exec.Argv is empty")
	}
	if cause := context.Cause(ctx); cause != nil {
		return tallyman.Unknown, tallyman.Result{}, fmt.Errorf("runner: %s was not started: %w", e.name(), cause)
	}
	noProgress := func(context.Context, uint64, []byte) error {
		return errors.New("a confirm program finds out what happened; it has no progress to save")
	}
	end, err := e.run(ctx, claim, noProgress, "TALLYMAN_INTENT="+strings.ReplaceAll(string(intent), "\x00", ""))
	if err != nil {
		return tallyman.Unknown, tallyman.Result{}, err
	}
	if end.signal == "" && end.aborted == nil && !end.stopped {
		switch end.status {
		case exitNotDone:
			return tallyman.NotDone, tallyman.Result{}, nil
		case exitRejected:
			return tallyman.Unknown, tallyman.Result{}, nil
		}
	}
	result, err := e.judge(ctx, end)
	return tallyman.Done, result, unfound(err)
}

// unfound is the error of a confirm that did not find out. A wrong URL answers
// 4xx, and a result may be too large: that must not reject the command.
func unfound(err error) error {
	if tallyman.VerdictOf(err).Action == tallyman.ActPark {
		return errors.New(err.Error())
	}
	return err
}

// Confirm asks the endpoint what became of an effect; see tallyman.Confirm. The
// request is that of a handler, with the intent in Tallyman-Intent. An answer
// of 2xx must have the header Tallyman-Finding: done, with the body as the
// result, not-done, or unknown. Any other answer means that it could not be
// found out now.
func (h *HTTP) Confirm(ctx context.Context, claim *tallyman.Claim, intent []byte) (tallyman.Finding, tallyman.Result, error) {
	req, err := h.request(ctx, claim)
	if err != nil {
		return tallyman.Unknown, tallyman.Result{}, err
	}
	req.Header.Set("Tallyman-Intent", headerValue(string(intent)))
	result, header, err := h.exchange(ctx, req)
	if err != nil {
		return tallyman.Unknown, tallyman.Result{}, unfound(err)
	}
	finding, ok := findings[header.Get(headerFinding)]
	if !ok {
		return tallyman.Unknown, tallyman.Result{}, fmt.Errorf("runner: POST %s: the answer has %s %.40q; a confirm endpoint says done, not-done or unknown there", place(req.URL), headerFinding, header.Get(headerFinding))
	}
	return finding, result, nil
}
