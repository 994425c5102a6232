// Package story tells what happened to one command: one timeline, merged from
// everything that JetStream still holds about it.
//
// [Gather] reads the evidence: the command in the stream, its record and the
// revision before, the notes of workers, the copies that were filed beside it.
// [GatherAside] does so for what was parked aside: a message that did not decode,
// a command whose id stands for another one.
// [Tell] makes a story of evidence. It is pure: the same evidence gives the
// same story, and evidence may come from elsewhere, such as a test or a dump.
// What other sources know, such as the row of an outbox, goes into
// [Evidence].Extra and takes its place in the timeline.
//
// # Guarantees
//
//   - Each sentence says what a piece of evidence says. What cannot be known is
//     listed as such in [Story].Unknown.
//   - Steps of a record stand in the order in which they were written, whatever
//     the clocks of their workers said.
//   - Texts hold no control characters: ids, names and errors come from outside
//     and are quoted wherever they are not plain words.
//
// # Not guaranteed
//
// Times are those of whoever wrote them down: the server for what is stored in
// the stream, a worker for its claims and notes. Clocks that differ put events
// of different sources into the wrong order.
//
// Notes are written on the side and may be missing, so silence proves nothing.
// Copies that were filed under their sequence are found through notes; without
// those, only [Options].Scan finds them.
//
// # Concurrency
//
// Gather may be called from many goroutines at once. Evidence and Story are
// plain values.
package story
