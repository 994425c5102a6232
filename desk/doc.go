// Package desk is what an operator does with commands: send a parked one back,
// state its outcome, give it up, take one out that has not ended, stop a queue
// and let it run again. It acts on what JetStream stores and talks to no worker.
//
//	parked    -> requeued   Requeue: it runs again, attempts start anew
//	parked    -> completed  Resolve: a person states the result
//	parked    -> discarded  Discard: it is given up
//	pending, claimed, waiting, requeued -> cancelled   Cancel: it is taken out
//
// The table of package kvstate decides what is legal. What it refuses wraps
// [ErrRefused] and says what may be done instead; see [Next].
//
// # Guarantees
//
//   - Each act is one compare-and-swap on the record, with who did it and why
//     in its trail. Of two people, or of a person and a worker, exactly one
//     wins; the other judges anew by what is then stored.
//   - The record comes first, and what has to happen to the stream second. A
//     crash in between loses nothing, and repeating the act finishes it.
//   - Repeating an act that was done changes nothing ([Outcome].Already).
//   - A write whose outcome is unknown is read back, never assumed.
//   - The books balance after each act. A requeued command whose publication
//     was cut off is reported as stranded until Requeue is repeated.
//
// # Shards
//
// [Sharded] is the desk of a pool with several: acts on an id go to its shard,
// acts on a queue to all of them, and acts on many through one after the other.
//
// # Not guaranteed
//
// A cancelled handler hears of it at its next heartbeat, a third of the lease
// later at most, if it listens to its context at all; a worker that had the
// command in hand may even begin. The result is refused either way, but what
// was done to the outside world until then is done.
//
// A command that is requeued runs once more: whether its effect repeats is
// between its handler and the outside world.
//
// # Concurrency
//
// A [Desk] is safe for concurrent use, also by many processes at once.
//
// # Errors, units, limits
//
// [ErrAct], [ErrNotFound] and [ErrRefused] are this package's; those of stream
// and kvstate come through wrapped. An act whose context has no deadline gives up after
// 30 s without a clear answer of the server. By is 1 to 128 bytes, Why up to 512. Many
// acts at once keep up to 256 commands and 32 MiB under way.
package desk
