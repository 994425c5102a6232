package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/internal/pipeline"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	ended, end := context.WithCancelCause(t.Context())
	end(broken)
	told := func(done func(int, error)) error { done(7, nil); return nil }
	never := func(func(int, error)) error { return nil }
	for name, c := range map[string]struct {
		ctx   context.Context
		start func(func(int, error)) error
		want  int
		err   error
		open  bool // nobody knows whether a write was done
	}{
		"told":                    {t.Context(), told, 7, nil, false},
		"told of a failure":       {t.Context(), func(done func(int, error)) error { done(0, broken); return nil }, 0, broken, false},
		"not sent":                {t.Context(), func(func(int, error)) error { return broken }, 0, broken, false},
		"the context ended first": {ended, never, 0, broken, true},
	} {
		if got, err := pipeline.Await(c.ctx, c.start); got != c.want || !errors.Is(err, c.err) || errors.Is(err, pipeline.ErrIndeterminate) {
			t.Errorf("%s: got %d, %v", name, got, err)
		}
		if got, err := pipeline.AwaitWrite(c.ctx, c.start); got != c.want || !errors.Is(err, c.err) || errors.Is(err, pipeline.ErrIndeterminate) != c.open {
			t.Errorf("%s, a write: got %d, %v", name, got, err)
		}
	}
}

// TestAgain has requests go unanswered.
func TestAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		unanswered := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		tries := 0
		err := pipeline.Again(t.Context(), time.Minute, func(ctx context.Context) error {
			if tries++; tries < 3 {
				return unanswered(ctx)
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("got %v after %d tries, want none after 3", err, tries)
		}
		refused := errors.New("refused")
		tries = 0
		err = pipeline.Again(t.Context(), time.Minute, func(context.Context) error { tries++; return refused })
		if !errors.Is(err, refused) || tries != 1 {
			t.Errorf("got %v after %d tries, want %v after one", err, tries, refused)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Second)
		defer cancel()
		tries = 0
		err = pipeline.Again(ctx, time.Minute, func(ctx context.Context) error { tries++; return unanswered(ctx) })
		if !errors.Is(err, context.DeadlineExceeded) || tries != 3 {
			t.Errorf("got %v after %d tries, want the deadline in the third", err, tries)
		}
	})
}

// TestQuestion has a question go unanswered: with a deadline it is asked again,
// and without one it fails in time.
func TestQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ask := func(ctx context.Context, lost int) (answer, tries int, err error) {
			answer, err = pipeline.Question(ctx, func(ctx context.Context) (int, error) {
				if tries++; tries > lost {
					return 7, nil
				}
				<-ctx.Done()
				return 0, ctx.Err()
			})
			return answer, tries, err
		}
		limited, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if got, tries, err := ask(limited, 2); got != 7 || tries != 3 || err != nil {
			t.Errorf("with a deadline: got %d, %v after %d tries, want the answer to the third", got, err, tries)
		}
		if got, tries, err := ask(t.Context(), 2); got != 0 || tries != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without one: got %d, %v after %d tries, want it to end by itself", got, err, tries)
		}
		if got, _, err := ask(t.Context(), 0); got != 7 || err != nil {
			t.Errorf("answered at once: got %d, %v", got, err)
		}
	})
}
