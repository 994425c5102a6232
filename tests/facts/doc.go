// Package facts holds no code, only tests: what this project relies on in
// nats-server, nats.go and Go, and what their documentation does not promise.
//
// A test that fails after an upgrade is news, not a nuisance. Its message names
// the decision that rests on the fact: change the decision first, then the test.
// Tests are numbered like the facts in the design; those that are figures, or
// that need a killed process or a stall of seconds, are not here but in the
// benchmarks and the end-to-end tests.
package facts
