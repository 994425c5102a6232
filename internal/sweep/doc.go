// Package sweep takes settled commands out of a command stream from which acks
// remove nothing. About once a second, one of the workers has the server drop
// what is settled from the beginning of the stream (ADR 050).
//
// # Guarantees
//
// What goes is certain twice over: the server has it as acked, below the ack
// floor of its queue, and either a worker has acked it on proof, which the ledger
// knows, or the bucket accounts for its sequence. What was acked and nothing
// accounts for, stays, and is named in the log.
//
// A word of others is believed no further than the floors bear it out.
//
// # What it does not
//
// It does not say when a command goes. That may be a while after it was settled:
// a purge delays what is in line to be delivered again, and waits for a moment
// when nothing is; and what is settled behind a command that is not waits until it is
// worth the work, or nearly too late for its proof.
//
// # Concurrency
//
// One goroutine runs a [Sweeper]. [Sweeper.Acked] and [Sweeper.Knows] are safe
// for concurrent use and do not block.
//
// # Errors
//
// There are none to handle: a round that fails is tried again. What the server
// denies is logged once, with a remedy.
package sweep
