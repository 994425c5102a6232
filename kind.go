package tallyman

import (
	"context"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
)

// Kind ties the name of a kind to the Go types of its payload and result,
// both carried as MessagePack. It is a value; declare one per kind and share
// it between producers and workers.
//
//	var Resize = tallyman.NewKind[ResizeArgs, ResizeDone]("resize")
type Kind[In, Out any] struct{ name string }

// NewKind names a typed kind. It panics if name is not one subject token,
// since a kind is a constant of the program.
func NewKind[In, Out any](name string) Kind[In, Out] {
	if err := command.ValidateName("kind", name); err != nil {
		panic(err)
	}
	return Kind[In, Out]{name: name}
}

// Name returns the kind's name.
func (k Kind[In, Out]) Name() string { return k.name }

// Command makes a command of this kind. Equal values of in give equal
// payloads, so that submitting the same id again is absorbed. It fails if in
// cannot be encoded; the id is checked when it is submitted.
func (k Kind[In, Out]) Command(id string, in In) (Command, error) {
	body, err := command.Marshal(in)
	if err != nil {
		return Command{}, fmt.Errorf("command %q: %w", id, err)
	}
	return Command{ID: id, Kind: k.name, ContentType: command.ContentTypeMsgpack, Payload: body}, nil
}

// Handler wraps a typed function. A payload that does not decode into In is
// rejected, which parks the command: it would not decode the next time either.
func (k Kind[In, Out]) Handler(fn func(ctx context.Context, claim *Claim, in In) (Out, error)) Handler {
	return HandlerFunc(func(ctx context.Context, claim *Claim) (Result, error) {
		in, err := k.payload(claim)
		if err != nil {
			return Result{}, err
		}
		out, err := fn(ctx, claim, in)
		if err != nil {
			return Result{}, err
		}
		return k.result(out)
	})
}

func (k Kind[In, Out]) payload(claim *Claim) (in In, err error) {
	if err := command.Unmarshal(claim.Payload(), &in); err != nil {
		return in, &verdictError{
			err:     fmt.Errorf("payload of kind %s: %w", k.name, err),
			verdict: Verdict{Action: ActPark, Reason: ReasonMalformed},
		}
	}
	return in, nil
}

func (k Kind[In, Out]) result(out Out) (Result, error) {
	body, err := command.Marshal(out)
	if err != nil {
		return Result{}, fmt.Errorf("result of kind %s: %w", k.name, err)
	}
	return Result{Body: body, ContentType: command.ContentTypeMsgpack}, nil
}

// Confirm wraps a typed Confirm for the kind's Route.
func (k Kind[In, Out]) Confirm(fn func(ctx context.Context, claim *Claim, in In, intent []byte) (Finding, Out, error)) Confirm {
	return func(ctx context.Context, claim *Claim, intent []byte) (Finding, Result, error) {
		in, err := k.payload(claim)
		if err != nil {
			return Unknown, Result{}, err
		}
		finding, out, err := fn(ctx, claim, in, intent)
		if err != nil || finding != Done {
			return finding, Result{}, err
		}
		result, err := k.result(out)
		return finding, result, err
	}
}

// Handle adds fn to mux as the handler of this kind.
func (k Kind[In, Out]) Handle(mux *Mux, fn func(ctx context.Context, claim *Claim, in In) (Out, error)) {
	mux.Handle(k.name, k.Handler(fn))
}

// Wait waits for the outcome of a command of this kind, as [Pool.Wait] does,
// and decodes its result. The receipt comes along; with an error it is the only
// thing that may be set.
//
//	done, receipt, err := Resize.Wait(ctx, pool, "img-7")
func (k Kind[In, Out]) Wait(ctx context.Context, pool *Pool, id string) (Out, Receipt, error) {
	receipt, err := pool.Wait(ctx, id)
	if err != nil {
		var none Out
		return none, receipt, err
	}
	out, err := k.Result(receipt)
	return out, receipt, err
}

// Result decodes the result of a receipt of this kind. A receipt of another kind
// is an error, and a result that does not decode into Out one that wraps
// ErrMalformed.
func (k Kind[In, Out]) Result(r Receipt) (Out, error) {
	var out Out
	if r.Kind != k.name {
		return out, fmt.Errorf("receipt of %q is of kind %q, not %q", r.ID, r.Kind, k.name)
	}
	if err := command.Unmarshal(r.Result, &out); err != nil {
		return out, fmt.Errorf("result of %q: %w", r.ID, err)
	}
	return out, nil
}
