package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// pollInterval is how often the harness looks whether the books balance. It
// bounds the error of a scenario's end.
const pollInterval = 2 * time.Millisecond

// field is a fresh server with what one contestant created there. Whatever
// happens on it is watched from outside.
type field struct {
	contestant Contestant
	profiles   func(role string) string
	server     *process
	dir        string
	books      books
	payload    int // bytes of a command's payload; 0 for payloadSize
}

// openField starts a server and lets the contestant create its assets there.
func openField(ctx context.Context, c Contestant, profiles func(role string) string) (*field, error) {
	return openTraced(ctx, c, profiles, "")
}

// openTraced has every flush of the server noted in a file, unless it is empty.
func openTraced(ctx context.Context, c Contestant, profiles func(role string) string, trace string) (_ *field, err error) {
	f := &field{contestant: c, profiles: profiles}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.dir, err = os.MkdirTemp("", "tallyman-bench-"); err != nil {
		return nil, err
	}
	if f.server, err = startProcess(ctx, order{Role: "server", System: c.System().name(), Dir: f.dir, Profile: f.profiles("server"), Trace: trace}); err != nil {
		return nil, err
	}
	if err := c.Create(ctx, f.server.ready.URL); err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	if f.books, err = c.Watch(ctx, f.server.ready.URL); err != nil {
		return nil, fmt.Errorf("open the books: %w", err)
	}
	return f, nil
}

func (f *field) close() {
	if f.books != nil {
		f.books.Close()
	}
	if f.server != nil {
		f.server.close()
	}
	if f.dir != "" {
		_ = os.RemoveAll(f.dir) // a temporary folder
	}
}

// described is what the server said of itself, and what the contestant made there.
func (f *field) described() report {
	r := f.server.ready
	if b, ok := f.books.(*streamBooks); ok {
		r.Assets = b.assets()
	}
	return r
}

// swept waits until all commands that were worked on have left their stream.
func (f *field) swept(ctx context.Context) error {
	b, ok := f.books.(*streamBooks)
	if !ok {
		return nil
	}
	return b.swept(ctx, 0)
}

// start starts a producer or a worker of the contestant.
func (f *field) start(ctx context.Context, role string, n, rate int) (*process, error) {
	return startProcess(ctx, order{
		Role: role, URL: f.server.ready.URL, Contestant: f.contestant.Name(), N: n, Rate: rate, Payload: f.payload, Profile: f.profiles(role),
	})
}

// settled waits until n commands are completed and none is left, and returns
// when that was. It fails when the worker does.
func (f *field) settled(ctx context.Context, n int, worker *process) (end time.Time, err error) {
	_, err = until(ctx, pollInterval, []*process{worker}, func() (done bool, err error) {
		end, done, err = f.books.Settled(ctx, n)
		return done, err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("wait for %d completions: %w", n, err)
	}
	return end, nil
}

// completions reads when each command was completed, and fails unless exactly
// n of them were.
func (f *field) completions(ctx context.Context, n int) (map[string]time.Time, error) {
	at, err := f.books.Completions(ctx)
	if err != nil {
		return nil, err
	}
	if len(at) != n {
		return nil, fmt.Errorf("%d commands made %d completions", n, len(at))
	}
	return at, nil
}

// seldom asks its books no more often than every so often: for those that a
// look costs something, beside contestants so slow that it makes no difference.
type seldom struct {
	books
	every time.Duration
	last  time.Time
}

func (s *seldom) Settled(ctx context.Context, n int) (time.Time, bool, error) {
	if time.Since(s.last) < s.every {
		return time.Time{}, false, nil
	}
	end, done, err := s.books.Settled(ctx, n)
	s.last = time.Now()
	return end, done, err
}
