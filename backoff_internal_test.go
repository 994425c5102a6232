package tallyman

import (
	"testing"
	"time"
)

// The delay of a late attempt, doubled so often that it does not fit into 64 bits, came out as a few seconds.
func TestSettings_BackoffOnlyGrows(t *testing.T) {
	t.Parallel()
	s := Settings{BackoffMin: 1<<31 + 1, BackoffMax: time.Hour}.WithDefaults()
	for attempt := 1; attempt <= 200; attempt++ {
		full := min(time.Hour, s.BackoffMin<<min(attempt-1, 20))
		least := full - full/5
		if got := s.backoff(attempt); got < least || got > full {
			t.Errorf("attempt %d: got %v, want %v to %v", attempt, got, least, full)
		}
	}
}
