// Package pipeline sends JetStream requests without waiting for each other and
// hands every answer to the callback of its request. [Await] is for whoever does
// wait, [Question] for what goes through the client library, [Again] and [Sleep]
// for whoever tries again, [Within] for whoever must not wait for ever. [Page] reads a part of a stream by one request, and
// waits. [Group] lets writes to one stream that are under way at the same time
// share atomic batches.
// A [Message] is used again once it is sent.
//
// One subscription carries all answers of a connection; a request costs a slot
// in a table and no goroutine, channel or timer of its own. It is what lets a
// worker settle tens of thousands of commands per second over one connection.
//
// # Guarantees
//
//   - Every request that [Pipe.Send] accepted has its callback called with a
//     final answer or an error exactly once, also when the connection breaks,
//     the server denies the subject, or the pipe is closed.
//   - An error that wraps [ErrIndeterminate] says that the server may or may
//     not have acted: read back before drawing a conclusion.
//
// # Concurrency
//
// A Pipe is safe for concurrent use. Callbacks run on the goroutine that reads
// answers (or the one that watches deadlines) and must not block. Sending never
// waits, so callbacks may send; how much may be under way is for callers to bound.
//
// # Limits and defaults
//
// A request times out after 5 s, looked at every 100 ms.
package pipeline
