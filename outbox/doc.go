// Package outbox joins a service's own SQL database to a pool: facts and the
// commands that follow from them are written in one transaction, and a relay
// carries the commands to the pool. On the other side an inbox makes the effect
// of a command and the mark that it was processed one transaction too.
//
//	your transaction                      relay                          pool
//	facts, Add(command)  -- commit --> pending -> sending -> published   stream -> worker -> receipt
//	                                      ^         |                                  |
//	                                      +- lease -+         row settled <------------+
//
// It works on SQLite and PostgreSQL with any driver for database/sql, and on
// transactions of pgx by package pgxtx. It links no driver itself.
//
//	tx, err := db.BeginTx(ctx, nil)
//	...                                    // your own writes
//	err = outbox.Add(ctx, outbox.SQLite.Tx(tx), outbox.Command{ID: "pay-7", Kind: "pay", Payload: body})
//	err = tx.Commit()
//
// # Guarantees
//
//   - [Add]: the command is submitted if and only if the transaction commits. An
//     id is one row: the same again is absorbed, another kind, payload or queue is
//     [ErrConflict]. What the pool would refuse by its names is refused here.
//   - [CommitDecision]: events and the commands that they need exist together or not at all.
//   - [Relay]: every committed row is submitted at least once, whatever order
//     transactions commit in: rows are found by their state and not by a cursor. The
//     pool absorbs what is submitted twice. Only the relay that holds a row's
//     claim, by name and by number of the claim, may mark it.
//   - Outages of pool or database lose nothing and count as nobody's failure.
//   - A row is removed only when it is published, its command's receipt was
//     seen, and the retention has passed since.
//   - [Once] and [Advance]: the effects on your database happen once, and a holder
//     that was superseded is refused.
//   - Scans read partial indexes without a single published row, and every batch
//     is bounded. Cost does not grow with the table.
//
// # Order
//
// Rows without [Command.OrderKey] are submitted in no particular order. Rows
// with the same key are submitted one after the other, each once the pool has
// accepted the one before, in the order of their sequence (column seq) among the
// rows that have committed. Two transactions that write the same key at the same
// time get their sequences when they add, and may commit in reverse: the row
// with the higher sequence may then be submitted first. Who needs an order between
// such transactions makes them write one after the other, for instance by
// updating a row of the key's subject first. On SQLite, which has one writer, that
// is always so. A row that failed for good holds up its key until [Retry] or [Discard].
//
// A key carries one row for each round trip through database and pool.
// The order is that of acceptance by the pool; workers run side by side.
//
// # Not guaranteed
//
// Published is not done: the receipt is in the pool, and later in the row's
// column receipt. An id is remembered for as long as its row or its receipt is
// kept. SQLite waits for other writers only as long as the connection's
// busy_timeout says, and a transaction that reads before it writes should begin
// with BEGIN IMMEDIATE (_txlock=immediate). A process that is stopped in the middle
// of a write to SQLite, this relay included, keeps all others from writing until
// it goes on or ends; that is so with any use of SQLite.
//
// # Concurrency
//
// Functions that take a [Tx] are as safe for concurrent use as that transaction.
// Methods of [Relay] are safe for concurrent use. Any number of relays may share
// a database; on PostgreSQL they do not wait for each other.
//
// # Time
//
// Leases, retries and retention are counted by the database's clock; on SQLite
// that is the clock of the machine. A relay trusts its lease by its own monotonic
// clock, from before it asked for it, and for nine tenths of it.
//
// # Errors
//
// [ErrConflict], [ErrInvalidID], [ErrInvalidName], [ErrLeaseLost], [ErrMoved],
// [ErrBackwards], [ErrStale], [ErrNoSchema] and [ErrNoRow]. After an error of a function that takes
// a [Tx] the transaction must be rolled back.
package outbox
