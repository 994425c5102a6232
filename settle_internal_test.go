package tallyman

import (
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// TestSameWrite is a regression: a run took the write of another run of its
// own worker, or what its write was to replace, for its own.
func TestSameWrite(t *testing.T) {
	t.Parallel()
	wanted := kvstate.Record{ID: "a", State: kvstate.Claimed, Owner: "w", Attempt: 1, Offset: 5, Seqs: []uint64{1}, Revision: 10,
		Checkpoint: []byte("at 5"), Intent: []byte("pay"), Trail: []kvstate.Step{{At: time.Unix(0, 7)}}}
	with := func(change func(*kvstate.Record)) *kvstate.Record {
		stored := wanted
		stored.Revision = 11
		change(&stored)
		return &stored
	}
	for name, c := range map[string]struct {
		stored *kvstate.Record
		want   bool
	}{
		"the write itself":               {with(func(*kvstate.Record) {}), true},
		"nothing":                        {nil, false},
		"what it was to replace":         {with(func(r *kvstate.Record) { r.Revision = 10 }), false},
		"another owner's":                {with(func(r *kvstate.Record) { r.Owner = "v" }), false},
		"of another copy of the command": {with(func(r *kvstate.Record) { r.Seqs = []uint64{2} }), false},
		"of another attempt":             {with(func(r *kvstate.Record) { r.Attempt = 2 }), false},
		"another state":                  {with(func(r *kvstate.Record) { r.State = kvstate.Completed }), false},
		"at another offset":              {with(func(r *kvstate.Record) { r.Offset = 6 }), false},
		"with another checkpoint":        {with(func(r *kvstate.Record) { r.Checkpoint = []byte("at 6") }), false},
		"with another intent":            {with(func(r *kvstate.Record) { r.Intent = nil }), false},
		"of another run of that worker":  {with(func(r *kvstate.Record) { r.Trail = []kvstate.Step{{At: time.Unix(0, 8)}} }), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := sameWrite(c.stored, &wanted); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
