package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/tallyman-go/tallyman/outbox"
)

// Relay serves the metrics of a relay. Stats tells what it has done, and what
// it last saw in the database; it is asked once for each scrape.
func Relay(stats func() outbox.Stats) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), relay{stats})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// relay is a collector.
type relay struct{ stats func() outbox.Stats }

// series is one metric and where it comes from.
type series struct {
	desc  *prometheus.Desc
	typ   prometheus.ValueType
	value func(outbox.Stats) float64
}

var relaySeries = []series{
	counter("tallyman_relay_published_total", "Rows that the pool has and that were marked as published.", func(s outbox.Stats) int64 { return s.Published }),
	counter("tallyman_relay_returned_total", "Times that a row was put back because of an outage, a full pool or a stop.", func(s outbox.Stats) int64 { return s.Returned }),
	counter("tallyman_relay_retried_total", "Times that a row failed and is tried again.", func(s outbox.Stats) int64 { return s.Retried }),
	counter("tallyman_relay_failed_total", "Rows that failed and are not tried again.", func(s outbox.Stats) int64 { return s.Failed }),
	counter("tallyman_relay_taken_over_total", "Rows taken over from relays whose lease had run out.", func(s outbox.Stats) int64 { return s.TakenOver }),
	counter("tallyman_relay_refused_marks_total", "Marks refused because the row had been taken over.", func(s outbox.Stats) int64 { return s.Refused }),
	counter("tallyman_relay_settled_total", "Rows whose receipt was seen.", func(s outbox.Stats) int64 { return s.Settled }),
	counter("tallyman_relay_removed_total", "Rows removed after the retention.", func(s outbox.Stats) int64 { return s.Removed }),
	gauge("tallyman_outbox_pending", "Rows that are not published yet, of the whole table; counting ends at 100,000.", func(s outbox.Stats) float64 { return float64(s.Pending) }),
	gauge("tallyman_outbox_failed", "Rows that failed for good and wait for a human; counting ends at 100,000.", func(s outbox.Stats) float64 { return float64(s.Abandoned) }),
	gauge("tallyman_outbox_oldest_seconds", "How long the oldest pending row could have been sent.", func(s outbox.Stats) float64 { return s.Oldest.Seconds() }),
	gauge("tallyman_outbox_sampled_timestamp_seconds", "When the table was last looked at; 0 if never.", func(s outbox.Stats) float64 {
		if s.SampledAt.IsZero() {
			return 0
		}
		return float64(s.SampledAt.UnixMilli()) / 1000
	}),
}

func counter(name, text string, value func(outbox.Stats) int64) series {
	return series{prometheus.NewDesc(name, text, nil, nil), prometheus.CounterValue, func(s outbox.Stats) float64 { return float64(value(s)) }}
}

func gauge(name, text string, value func(outbox.Stats) float64) series {
	return series{prometheus.NewDesc(name, text, nil, nil), prometheus.GaugeValue, value}
}

// Describe implements prometheus.Collector.
func (r relay) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range relaySeries {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (r relay) Collect(ch chan<- prometheus.Metric) {
	now := r.stats()
	for _, s := range relaySeries {
		ch <- prometheus.MustNewConstMetric(s.desc, s.typ, s.value(now))
	}
}
