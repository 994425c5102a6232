package metrics_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/metrics"
	"github.com/tallyman-go/tallyman/kvstate"
)

func scrape(m *metrics.Metrics) []string {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return strings.Split(w.Body.String(), "\n")
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	mux := &tallyman.Mux{}
	mux.Handle("resize-*", tallyman.HandlerFunc(nil))
	m := metrics.New(mux.Pattern)
	m.Gauge(func() (int, int) { return 7, 3 })

	want := func(lines ...string) {
		t.Helper()
		got := map[string]bool{}
		for _, line := range scrape(m) {
			got[line] = true
		}
		for _, line := range lines {
			if !got[line] {
				t.Errorf("got no line %q", line)
			}
		}
	}
	want("tallyman_completed_total 0", "tallyman_absorbed_total 0", "tallyman_retried_total 0", "tallyman_takeovers_total 0",
		"tallyman_refused_writes_total 0", "tallyman_lease_losses_total 0", "tallyman_handed_back_total 0", "tallyman_stuck_total 0",
		"tallyman_dropped_total 0", "tallyman_submitted_total 0", `tallyman_parked_total{reason="rejected"} 0`, `tallyman_parked_total{reason="corrupt"} 0`,
		"tallyman_in_flight 7", "tallyman_running 3")

	for _, e := range []tallyman.Event{
		{Type: tallyman.EventCompleted, Kind: "resize-a", Handler: 2 * time.Second, Settle: time.Second, FollowUps: 2},
		{Type: tallyman.EventCompleted, Kind: "resize-b", Handler: time.Second, Settle: time.Second},
		{Type: tallyman.EventRetried, Kind: "resize-b", Handler: time.Second},
		{Type: tallyman.EventRetried, Kind: "from-anyone"},
		{Type: tallyman.EventParked, Kind: "from-anyone", Reason: kvstate.ReasonUnknownKind},
		{Type: tallyman.EventAbsorbed}, {Type: tallyman.EventTakeover}, {Type: tallyman.EventHandedBack},
		{Type: tallyman.EventRefused}, {Type: tallyman.EventLeaseLost}, {Type: tallyman.EventStuck}, {Type: tallyman.EventDropped}, {Type: tallyman.EventForwarded},
	} {
		m.Observe(e)
	}
	want("tallyman_completed_total 2", "tallyman_retried_total 2", "tallyman_submitted_total 2", `tallyman_parked_total{reason="unknown_kind"} 1`,
		"tallyman_absorbed_total 1", "tallyman_takeovers_total 1", "tallyman_handed_back_total 1", "tallyman_refused_writes_total 1",
		"tallyman_lease_losses_total 1", "tallyman_stuck_total 1", "tallyman_dropped_total 1", "tallyman_forwarded_total 1",
		`tallyman_handler_seconds_sum{kind="resize-*"} 4`, `tallyman_handler_seconds_count{kind="resize-*"} 3`,
		`tallyman_settle_seconds_sum{kind="resize-*"} 2`, `tallyman_settle_seconds_count{kind="resize-*"} 2`)
	for _, line := range scrape(m) {
		if strings.Contains(line, "from-anyone") {
			t.Errorf("a kind that no route knows has a series of its own: %s", line)
		}
	}
}
