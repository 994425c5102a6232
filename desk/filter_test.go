package desk

import (
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// A record that was carried into another shard was stored just now, and its
// command was parked when it was.
func TestFilter_ParkedBeforeItWasMoved(t *testing.T) {
	t.Parallel()
	now := time.Now()
	r := &kvstate.Record{State: kvstate.Parked, StoredAt: now, Trail: []kvstate.Step{{State: kvstate.Parked, At: now.Add(-48 * time.Hour)}}}
	for _, c := range []struct {
		filter Filter
		want   bool
	}{
		{Filter{}, true},
		{Filter{OlderThan: 24 * time.Hour}, true},
		{Filter{OlderThan: 72 * time.Hour}, false},
		{Filter{NewerThan: time.Hour}, false},
	} {
		if got := c.filter.Match(r, now); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.filter, got, c.want)
		}
	}
}
