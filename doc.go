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
// What a crash costs is the handler's choice: [Claim.Progress] saves where a
// takeover resumes, [Each] runs a batch on top of it, and [Claim.Prepare]
// announces an effect that must not be repeated, of which the [Route]'s Confirm
// then says what became. See docs/recovery.md.
//
// # Guarantees
//
//   - A command id has at most one receipt while receipts are kept, however
//     often the command is submitted or delivered.
//   - A command leaves the stream only after its outcome is durable.
//   - A worker that lost its lease changes nothing any more.
//   - Progress never goes backwards.
//   - The same id with another kind or payload is [ErrConflict], or parked as one.
//   - A follow-up exists if and only if its parent's receipt exists.
//   - A failing command cannot spin: attempts are bounded, and then it is parked.
//   - After an effect that was announced nothing is guessed: Confirm finds out,
//     or the command is parked as uncertain.
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
