// Package metrics turns the events of a worker, and the counts of a relay, into
// Prometheus metrics.
//
// # Guarantees
//
// Every series exists from the start, so that a rate over it is right from the
// first event on; histograms appear with the first attempt of their kind. The
// label kind is the pattern of a route and reason is one of eight: how many
// series there are depends on the pool file alone, not on what is submitted.
//
// # Not guaranteed
//
// Counters are those of one process and start at 0 with it. They say what the
// process has seen, the books of the pool are with tallyman audit.
//
// # Concurrency
//
// All methods are safe for concurrent use.
//
// # Units
//
// Durations are seconds.
package metrics
