package tallyman

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
)

// A receipt is made in memory that the next one uses again. One whose write got
// lost, or the answer to it, is compared and perhaps written again while many
// others are made: every record holds its own all the same.
func TestRun_Complete_ReceiptsAreTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 600
		settings := Settings{Lease: time.Minute}.WithDefaults()
		s := memory.NewServer(memory.Config{Lease: settings.Lease})
		var writes, lost, ran atomic.Int64
		h := s.Connect("w", func(op memory.Op) (f memory.Fate) {
			if op == memory.OpWrite {
				i := writes.Add(1)
				f.Lost, f.Unanswered = i%5 == 0, i%7 == 0
				if f.Lost || f.Unanswered {
					lost.Add(1)
				}
			}
			return f
		})
		body := func(id string) []byte { return bytes.Repeat([]byte(id+" "), 1+len(id)*int(id[len(id)-1]-'0')) }
		follows := func(id string) bool { return id[0] == 'c' && id[len(id)-1] == '4' }
		stop := workOnDouble(t, h, settings, func(_ context.Context, c *Claim) (Result, error) {
			ran.Add(1)
			if follows(c.ID()) {
				if err := c.FollowUp(Command{ID: "follows-" + c.ID(), Kind: "k"}); err != nil {
					return Result{}, err
				}
			}
			return Result{Body: body(c.ID()), ContentType: "of " + c.ID()}, nil
		})
		for i := range n {
			sendOnDouble(t, s, command.Token(fmt.Sprint("c-", i)))
			time.Sleep(50 * time.Millisecond) // half a minute in all, of which a lost answer takes five seconds
		}
		for len(s.Held()) > 0 {
			time.Sleep(time.Second)
		}
		stop()
		seqs := map[command.Token]uint64{}
		right := func(e kvstate.Entry) bool {
			r := e.Record
			return r != nil && r.ID == string(e.Key) && r.State == kvstate.Completed && r.Attempt == 1 &&
				slices.Equal(r.Seqs, []uint64{seqs[e.Key]}) && bytes.Equal(r.Result, body(r.ID)) && r.ContentType == "of "+r.ID &&
				len(r.FollowUps) == 1 == follows(r.ID) && len(r.Trail) == 1 && r.Trail[0].State == kvstate.Completed && r.Trail[0].Owner == r.Owner
		}
		for _, e := range s.Log() {
			if e.What == memory.Stored {
				seqs[e.Token] = e.Seq
			}
			if e.What == memory.Written && !kvstate.Own(e.Entry.Key) && !right(e.Entry) {
				t.Errorf("%v: %+v, want its own receipt", e, e.Entry.Record)
			}
		}
		if len(seqs) != n+n/10 {
			t.Errorf("%d commands were stored, want %d and their follow-ups, %d", len(seqs), n, n/10)
		}
		for key := range seqs {
			if e := s.Entry(key); !right(e) {
				t.Errorf("%s: got %+v at the end, want its own receipt", key, e.Record)
			}
		}
		if lost.Load() < n/4 || ran.Load() != n+n/10 {
			t.Errorf("%d writes or answers were lost, and %d handlers ran; want more than %d, and %d", lost.Load(), ran.Load(), n/4, n+n/10)
		}
		for _, text := range s.Broken() {
			t.Error(text)
		}
	})
}
