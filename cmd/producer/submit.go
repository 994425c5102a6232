package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"golang.org/x/term"
)

// Submit is the command that submits one command.
type Submit struct {
	Kind    string `arg:"" help:"Kind of the command."`
	Payload string `arg:"" optional:"" help:"Payload; - reads it from stdin. Empty if left out."`

	ID          string        `name:"id" required:"" help:"Id of the act: the same id always means the same act." placeholder:"ID"`
	Queue       string        `help:"Queue to submit to." default:"default" placeholder:"NAME"`
	ContentType string        `help:"What the payload is, such as application/json." placeholder:"TYPE"`
	NotAfter    moment        `help:"Last moment to start: a time such as 2030-01-31T12:00:00Z, or a duration from now." placeholder:"TIME"`
	Wait        time.Duration `help:"Wait this long for the outcome, and print the result." placeholder:"D"`
	JSON        bool          `name:"json" help:"Print one JSON object."`
}

// Validate checks what the parser cannot.
func (s *Submit) Validate() error {
	if s.Wait < 0 {
		return fmt.Errorf("--wait %v: must not be negative", s.Wait)
	}
	return nil
}

// answer is what --json prints.
type answer struct {
	ID           string         `json:"id"`
	Sequence     uint64         `json:"sequence"`
	Absorbed     bool           `json:"absorbed"`
	State        tallyman.State `json:"state,omitempty"`
	Result       *string        `json:"result,omitempty"`
	ResultBase64 []byte         `json:"result_base64,omitempty"`
	Error        string         `json:"error,omitempty"`
	Reason       string         `json:"reason,omitempty"`

	receipt tallyman.Receipt
}

// Run submits the command and, if asked, waits for its outcome.
func (s *Submit) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	nc, pool, err := common.OpenPool(ctx, "tallyman producer")
	if err != nil {
		return err
	}
	defer nc.Close()
	defer pool.Close()
	c, err := s.command(cli.Until(ctx, os.Stdin), pool.Commands().Limit())
	if err != nil {
		return err
	}
	defer lookFor(ctx, nc, pool, s.Queue, os.Stderr)()
	sub, err := pool.Submit(ctx, c)
	if err != nil {
		return err
	}
	a := &answer{ID: sub.ID, Sequence: sub.Sequence, Absorbed: sub.Absorbed}
	if s.Wait > 0 {
		bounded, cancel := context.WithTimeout(ctx, s.Wait)
		defer cancel()
		receipt, waitErr := pool.Wait(bounded, s.ID)
		a.settle(receipt)
		if err := s.print(out, a); err != nil {
			return err
		}
		if errors.Is(waitErr, context.DeadlineExceeded) {
			return fmt.Errorf("no outcome of %q within %v; it was accepted and goes on: tallyman why tells where it stands, and the same submission waits again: %w", s.ID, s.Wait, waitErr)
		}
		return waitErr
	}
	return s.print(out, a)
}

// command makes the command that the flags describe.
func (s *Submit) command(stdin io.Reader, limit int) (tallyman.Command, error) {
	c := tallyman.Command{
		ID: s.ID, Kind: s.Kind, Queue: s.Queue, ContentType: s.ContentType,
		Payload: []byte(s.Payload), NotAfter: s.NotAfter.Time,
	}
	if s.Payload != "-" {
		return c, nil
	}
	var err error
	if c.Payload, err = io.ReadAll(io.LimitReader(stdin, int64(limit)+1)); err != nil {
		return c, fmt.Errorf("read the payload from stdin: %w", err)
	}
	if len(c.Payload) > limit {
		return c, fmt.Errorf("the payload on stdin is %w: the limit is %d bytes; store the body elsewhere and submit a reference", tallyman.ErrTooLarge, limit)
	}
	return c, nil
}

// settle adds the outcome; a zero receipt means that there is none yet.
func (a *answer) settle(r tallyman.Receipt) {
	a.receipt = r
	a.State, a.Error, a.Reason = r.State, r.Error, string(r.Reason)
	switch {
	case r.State != tallyman.Completed:
	case utf8.Valid(r.Result):
		text := string(r.Result)
		a.Result = &text
	default:
		a.ResultBase64 = r.Result
	}
}

// print writes JSON, or the result alone if one was waited for, byte for byte,
// or a line that says what became of the submission.
func (s *Submit) print(out *cli.Out, a *answer) error {
	if s.JSON {
		return out.JSON(a)
	}
	if s.Wait > 0 {
		if _, err := out.Write(a.receipt.Result); err != nil {
			return err
		}
		if n := len(a.receipt.Result); n > 0 && a.receipt.Result[n-1] != '\n' && term.IsTerminal(int(os.Stdout.Fd())) {
			fmt.Fprintln(out)
		}
		return nil
	}
	verb := "accepted"
	if a.Absorbed {
		verb = "absorbed, nothing changed"
	}
	_, err := fmt.Fprintf(out, "%s: %s (sequence %d)\n", a.ID, verb, a.Sequence)
	return err
}

// moment is a time, given as such or as a duration from now.
type moment struct{ time.Time }

// UnmarshalText reads what the command line says.
func (m *moment) UnmarshalText(text []byte) error {
	if d, err := time.ParseDuration(string(text)); err == nil {
		if d <= 0 {
			return fmt.Errorf("%s has passed; give a positive duration", text)
		}
		m.Time = time.Now().Add(d)
		return nil
	}
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return errors.New("give a time such as 2030-01-31T12:00:00Z or a duration such as 10m")
	}
	m.Time = t
	return nil
}
