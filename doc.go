// Package tallyman is a distributed worker pool on NATS JetStream whose books
// balance: every accepted command ends in exactly one receipt, or lies on the
// operator's desk, and anyone can prove it from JetStream alone.
//
// # Usage
//
// A [Producer] submits commands to a [Pool]; a [Worker] claims them, runs the
// [Handler] that its [Mux] finds for their [Kind], and writes their receipts.
// [Pool.Wait] returns a receipt, and [Pool.Watch] yields changes as they happen.
// [Create] makes a pool, once.
//
// # Guarantees
//
//   - A command id has at most one receipt while receipts are kept, however
//     often the command is submitted or delivered.
//   - A command leaves the stream only after its outcome is durable.
//   - A worker that lost its lease changes nothing any more.
//   - A follow-up exists if and only if its parent's receipt exists.
//
// # Not guaranteed
//
// A handler may run more than once: after a crash nobody knows how far it got.
// Make its effect idempotent (the command's id is the key), resume from saved
// progress, or fence it with the claim's token.
//
// # Concurrency
//
// Pool, Producer, Worker and Claim are safe for concurrent use. Run blocks until
// what it started has ended.
package tallyman
