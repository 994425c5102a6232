// Package stream is the command stream of a pool: its topology, and the
// publishing, fetching and acking of commands. It is the only place that knows
// the stream's subjects and the codes with which the server refuses a command.
//
// # Guarantees
//
//   - A command whose publish was accepted lies in the stream until it is acked.
//   - As long as it lies there, a second command with the same queue, kind and
//     id is refused ([ErrRepeated]), with no time window and across restarts.
//   - A [Delivery] is acked only against a [command.Proof] of durability.
//     [Stream.Remove] is for whoever acts on a record that speaks for the sequence.
//   - A [Fetcher] holds no more deliveries than it was told to want.
//
// # Not guaranteed
//
// Acks are not fenced by the server: whoever has lost a lease must stay silent
// of their own accord. A delivery may come twice; telling so is dedupe's part.
//
// # Concurrency
//
// A [Stream] is safe for concurrent use; a [Fetcher] runs in one goroutine.
// Callbacks named done run on the pipeline's goroutine and must not block.
package stream
