// Package journal keeps event-sourced runs on JetStream alone: what happened
// in a run, and the commands that follow from it, are one write. It is for
// those whose facts live in no database; see docs/journal.md for the choice.
//
//	Commit(run, expected, Decision{Events, Commands})
//	   |  one message, over exactly the last one of the run
//	   v
//	stream <pool>_journal ---- Replay, Load ----> fold(state, event)
//	   |  durable consumer "relay"
//	   v
//	Relay ---- SubmitAsync ----> the pool ---- worker, receipt
//	   |  all confirmed
//	   v
//	ack = published
//
// # Usage
//
// An operator makes the journal of a pool with [Create], or tallyman init
// --journal. Whoever decides opens it with [Open], loads a run with [Load],
// and decides with [Run.Decide]; [Journal.Commit] and [Journal.Replay] are the
// same without a state. At least one [Relay] has to run somewhere. The next
// decision is best made by the handler of the command that the last one asked
// for, under the command's id as commit id: examples/trip does so.
//
// # Guarantees
//
//   - Events and commands of a decision are stored together or not at all.
//   - A place in a run is taken by one decision: of concurrent writers one
//     wins, and the others get [ErrConflict].
//   - An unknown outcome is read back, never assumed. What cannot be found out
//     is [ErrUnconfirmed], and repeating it under the same commit id is absorbed.
//   - A command of a stored decision is submitted, however often relays die. It
//     is submitted again after a crash and absorbed by the pool: one receipt.
//   - A decision is acknowledged only when each of its commands is in the pool,
//     or parked because it never can be.
//   - Replays and loads submit and change nothing, and show every decision that
//     was stored before they began.
//   - Gaps and damage are errors ([ErrGap], [ErrDamaged]); a snapshot that
//     cannot be trusted is never used. [Audit] proves all of that afterwards.
//
// # Not guaranteed
//
//   - Order of commands. Submissions do not wait for each other, relays work
//     side by side, one may die so that its decision comes later than the next,
//     and workers run commands as they come. If B must follow A, decide on B when
//     A has its receipt.
//   - That a command is remembered for ever. It is absorbed while its receipt is
//     kept. A decision that stays unpublished for longer than that, after some of
//     its commands were submitted, submits them again, and they run again.
//   - Purged runs. Decisions cannot be deleted one by one, but an operator may
//     purge a run, and with it commands that no relay has met.
//   - Transactions over several runs.
//
// # Concurrency
//
// [Journal] and [Relay] are safe for concurrent use, and any number of
// processes may decide and relay. A [Run] belongs to one goroutine at a time.
//
// # Errors
//
// See the variables. They can be told apart by whether something was written:
// only [ErrUnconfirmed] leaves that open.
//
// # Units, defaults and limits
//
// A decision is one message: at most the server's max_payload (1 MB by
// default), 1,000 events and 1,000 commands; each command within the pool's own
// limit. Run ids have 1 to 216 bytes and follow the rules of command ids. A
// relay holds 256 decisions, and tries again after 1 s to 1 min. The lease of a
// decision is 30 s. Snapshots are taken every 100 decisions, and two are kept.
package journal
