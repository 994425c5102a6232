// Package lease is timed ownership of a delivery.
//
// The server gives a delivery to someone else when its ack wait has passed
// without a sign of life. It never says so to the one it took it from, and
// confirms the late heartbeat of a superseded holder like any other. So the
// holder must know by itself when its ownership ends:
//
//	trusted until = start of the last confirmed heartbeat + ack wait - margin
//
// A heartbeat counts from the moment before it was sent, not from its
// confirmation: the server cannot have received it earlier, so its own
// deadline is never the earlier one, however slow the network. The first
// lease counts from the moment its pull was sent. The margin covers clocks
// that tick at different speeds, and the time in which a handler notices.
//
// # Guarantees
//
//   - [Lease.Held] is exact: it asks the monotonic clock, not a timer. A
//     process that wakes from a freeze finds its leases ended before it can act
//     on them.
//   - A lost lease never comes back, whatever confirmation still arrives.
//   - The holder is told within a twentieth of the ack wait, which is less
//     than the margin: before anyone else gets the delivery.
//
// # Not guaranteed
//
// A lease does not stop anyone from writing. What fences a stale holder is the
// compare-and-swap on the record, for which a takeover's revision serves as the
// fencing token; the lease keeps it from trying.
//
// The monotonic clock stands still while a machine is suspended. Heartbeats
// therefore also read the record, where a takeover shows.
//
// # Concurrency, units, defaults
//
// Everything is safe for concurrent use. One goroutine ([Keeper.Run]) serves
// all leases of a worker. Heartbeats are due at a third of the ack wait and
// repeated at a sixth until confirmed; the margin is a tenth.
package lease
