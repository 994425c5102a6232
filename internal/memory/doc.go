// Package memory is a double of a pool's stream and bucket, in memory, that
// injects faults. It is for tests of the root package: what a worker or producer
// does against JetStream, it does against a [Handle] of a [Server].
//
// # What it does as JetStream does
//
//   - A work queue: one copy per subject, a duplicate window, an ack wait,
//     redelivery, naks with and without delay, heartbeats. Answers are not
//     fenced: only the sequence counts, whoever sends it.
//   - A bucket: revisions that only rise, compare-and-swap by key, two revisions
//     per key, expiry, rollup, and delete markers that count as revisions.
//
// A conformance suite in the root package holds it to that: the same table of
// behaviours runs on the double, on a server and on a cluster.
//
// # What it does not
//
// It never restarts and never loses what it has confirmed. It knows neither
// permissions nor limits of the stream, and one message is never too large for
// its readers.
//
// # Faults
//
// Each worker gets a handle of its own, which stands for its process and its
// connection. See [Handle.Kill], [Handle.Freeze], [Handle.Cut] and [Fate].
//
// # Time and concurrency
//
// All of it goes by package time alone, so that in a bubble of testing/synctest
// it lives in simulated time. Everything is safe for concurrent use. Callbacks
// run on goroutines of the double, one at a time for each handle, never before
// the call that takes them has returned or from within it; timeouts may run
// beside them. The double keeps every revision and every [Event] for ever.
package memory
