// Package kvstate keeps the records of commands in the pool's JetStream
// bucket: the states and their legal transitions, compare-and-swap, progress,
// receipts and their retention.
//
// # Guarantees
//
//   - A record is written only over the revision that the writer has seen
//     ([Store.Write]); whoever comes second gets [ErrStale].
//   - Final records keep their bytes until their retention has passed, and
//     nothing older comes to light when they go.
//   - Damage is noticed: every record carries a checksum. Fields that a newer
//     version wrote survive being rewritten by this one.
//
// # Not guaranteed
//
// Notes ([Store.Note]) are for people: they may be missing, and nothing is
// decided by them.
//
// [Store.ReadMany] may be answered by a replica that lags; what it says is a
// hint that the next write confirms or refutes. [Store.Read] asks the leader.
//
// # Concurrency
//
// A [Store] is safe for concurrent use. Callbacks run on the pipeline's
// goroutine and must not block. A [Record] belongs to one goroutine at a time.
package kvstate
