// Package pgxtx lends pgx to the outbox: transactions of pgx itself, and the
// notifications by which Add wakes the relays.
//
// # Guarantees
//
//   - [Wrap] adds no statement of its own: it neither commits nor rolls back.
//   - [Listen] calls wake after every notification, and once after each time
//     that it begins to listen, so that what was missed meanwhile is looked for.
//
// # Not guaranteed
//
// A notification may be lost with a connection. The relay's poll finds the row.
//
// # Concurrency and errors
//
// A wrapped transaction is as safe for concurrent use as pgx.Tx, which is not
// at all. Errors are those of pgx; that of a missing row matches sql.ErrNoRows.
package pgxtx
