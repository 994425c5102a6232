package tallyman

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// pad is where a notebook under test writes.
type pad struct {
	mu    sync.Mutex
	away  bool  // the server
	fault error // what it says while it is away
	notes []kvstate.Note
	tries int
}

func (p *pad) write(_ context.Context, _ string, n *kvstate.Note) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tries++; p.away {
		return p.fault
	}
	p.notes = append(p.notes, *n)
	return nil
}

// written returns what has been written, and after how many tries.
func (p *pad) written() (notes []kvstate.Note, tries int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.notes), p.tries
}

func (p *pad) comeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = false
}

func TestNotebook(t *testing.T) {
	t.Parallel()
	// run runs a notebook in the bubble until the function it returns is called.
	run := func(p *pad) (b *notebook, log *bytes.Buffer, stop func()) {
		log = &bytes.Buffer{}
		b = newNotebook(nil, slog.New(slog.NewTextHandler(log, nil)))
		b.store = func(ctx context.Context, q pendingNote, unique string) error { return p.write(ctx, unique, &q.note) }
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); b.run(ctx) }()
		return b, log, func() { cancel(); <-done }
	}
	t.Run("a flood is written at a bounded rate, what exceeds it is counted and told once a minute", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := &pad{}
			b, log, stop := run(p)
			for range maxNotes + 500 {
				b.add("a", kvstate.Note{})
			}
			time.Sleep(time.Second)
			synctest.Wait()
			notes, _ := p.written()
			if got, most := len(notes), int(time.Second/notePause)+1; got < most/2 || got > most {
				t.Errorf("%d notes in the first second, want about %d and no more", got, most)
			}
			time.Sleep(2 * tellDropped)
			synctest.Wait()
			notes, _ = p.written()
			if got := len(notes); got < maxNotes || got > maxNotes+1 {
				t.Errorf("%d notes written, want the %d that wait, and one more at most", got, maxNotes)
			}
			stop()
			if got := strings.Count(log.String(), "dropped="); got != 1 {
				t.Errorf("told %d times of dropped notes, want once: %s", got, log)
			}
		})
	})
	t.Run("what cannot be written while the server is away is written when it is back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := &pad{away: true, fault: kvstate.ErrIndeterminate}
			b, _, stop := run(p)
			for i := range 3 {
				b.add("a", kvstate.Note{Attempt: i})
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			p.comeBack()
			time.Sleep(time.Second)
			synctest.Wait()
			if notes, _ := p.written(); len(notes) != 3 || notes[0].Attempt != 0 || notes[2].Attempt != 2 {
				t.Errorf("got %+v, want all three in order", notes)
			}
			stop()
		})
	})
	t.Run("what will never be written is given up at once", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := &pad{away: true, fault: errors.Join(kvstate.ErrDenied)}
			b, log, stop := run(p)
			b.add("a", kvstate.Note{})
			time.Sleep(time.Second)
			stop()
			if _, tries := p.written(); tries != 1 || !strings.Contains(log.String(), "dropped=1") {
				t.Errorf("%d tries, want one that is told of: %s", tries, log)
			}
		})
	})
	t.Run("the end writes what is left, but waits for no server that is away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			p := &pad{}
			b, _, stop := run(p)
			for range 300 {
				b.add("a", kvstate.Note{})
			}
			stop()
			if notes, _ := p.written(); len(notes) != 300 {
				t.Errorf("%d notes written at the end, want 300", len(notes))
			}
			p = &pad{away: true, fault: kvstate.ErrUnavailable}
			b, _, stop = run(p)
			b.add("a", kvstate.Note{})
			b.add("a", kvstate.Note{})
			began := time.Now()
			stop()
			if took := time.Since(began); took > 2*noteTime {
				t.Errorf("the end took %v, want no more than %v", took, 2*noteTime)
			}
		})
	})
}
