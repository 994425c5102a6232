package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/kvstate"
)

// buckets of both histograms, in seconds: from a handler in Go to one that
// takes ten minutes.
var buckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600}

// Metrics of one worker, in a registry of their own.
type Metrics struct {
	registry *prometheus.Registry
	pattern  func(kind string) string

	events    map[tallyman.EventType]prometheus.Counter
	parked    *prometheus.CounterVec
	submitted prometheus.Counter
	handler   *prometheus.HistogramVec
	settle    *prometheus.HistogramVec
}

// counters says how the events are called that are merely counted.
var counters = []struct {
	event      tallyman.EventType
	name, help string
}{
	{tallyman.EventCompleted, "tallyman_completed_total", "Commands whose receipt this worker stored."},
	{tallyman.EventAbsorbed, "tallyman_absorbed_total", "Repeated deliveries and copies that changed nothing."},
	{tallyman.EventRetried, "tallyman_retried_total", "Failed attempts that are followed by another."},
	{tallyman.EventTakeover, "tallyman_takeovers_total", "Attempts that went on where an earlier one had ended."},
	{tallyman.EventHandedBack, "tallyman_handed_back_total", "Commands given back at shutdown."},
	{tallyman.EventRefused, "tallyman_refused_writes_total", "Writes refused because someone else owned the command."},
	{tallyman.EventLeaseLost, "tallyman_lease_losses_total", "Leases that ended while a handler was at work."},
	{tallyman.EventStuck, "tallyman_stuck_total", "Handlers that ignored the end of their context."},
	{tallyman.EventDropped, "tallyman_dropped_total", "Deliveries left to their lease, to come again."},
	{tallyman.EventCancelled, "tallyman_cancelled_total", "Commands that an operator cancelled while this worker had them."},
	{tallyman.EventFellBack, "tallyman_fell_back_total", "Damaged records; the attempt resumed from the one before."},
	{tallyman.EventForwarded, "tallyman_forwarded_total", "Commands that lay in another shard than their id's and were submitted there."},
}

// New returns metrics. Pattern gives the route that handles a kind, empty if
// there is none; see tallyman.Mux.Pattern.
func New(pattern func(kind string) string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		pattern:  pattern,
		events:   make(map[tallyman.EventType]prometheus.Counter),
		parked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tallyman_parked_total", Help: "Commands stopped for a human, by reason.",
		}, []string{"reason"}),
		submitted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tallyman_submitted_total", Help: "Follow-ups born with the receipts of this worker.",
		}),
		handler: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tallyman_handler_seconds", Help: "Time that handlers took, by the route's kind.", Buckets: buckets,
		}, []string{"kind"}),
		settle: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tallyman_settle_seconds", Help: "Time from a handler's return to the durable receipt, by the route's kind.", Buckets: buckets,
		}, []string{"kind"}),
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.parked, m.submitted, m.handler, m.settle,
	)
	for _, c := range counters {
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: c.name, Help: c.help})
		m.registry.MustRegister(counter)
		m.events[c.event] = counter
	}
	for _, reason := range kvstate.Reasons() {
		m.parked.WithLabelValues(string(reason))
	}
	return m
}

// Gauge adds what inFlight tells when it is asked: the deliveries that the
// worker holds, and the handlers that run. Call it once.
func (m *Metrics) Gauge(inFlight func() (held, running int)) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tallyman_in_flight", Help: "Deliveries that this worker holds."},
			func() float64 { held, _ := inFlight(); return float64(held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tallyman_running", Help: "Handlers that are running."},
			func() float64 { _, running := inFlight(); return float64(running) }),
	)
}

// Observe counts an event. It is meant for tallyman.WorkerConfig.Observe.
func (m *Metrics) Observe(e tallyman.Event) {
	if counter := m.events[e.Type]; counter != nil {
		counter.Inc()
	}
	if e.Type == tallyman.EventParked {
		m.parked.WithLabelValues(string(e.Reason)).Inc()
	}
	if e.FollowUps > 0 {
		m.submitted.Add(float64(e.FollowUps))
	}
	pattern := m.pattern(e.Kind)
	if pattern == "" {
		return
	}
	switch e.Type {
	case tallyman.EventCompleted:
		m.handler.WithLabelValues(pattern).Observe(e.Handler.Seconds())
		m.settle.WithLabelValues(pattern).Observe(e.Settle.Seconds())
	case tallyman.EventRetried:
		m.handler.WithLabelValues(pattern).Observe(e.Handler.Seconds())
	}
}

// Handler serves the metrics in the format of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
