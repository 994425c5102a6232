// Package audit proves that no accepted command was lost: each sequence of the
// command stream is still in the stream, or a record in the bucket accounts
// for it. It needs nothing but what JetStream stores, and believes no worker.
//
// # Guarantees
//
// If a [Report] is balanced, every sequence from 1 to LastSeq had been
// accounted for at the time of the audit. That holds while workers and
// producers run:
//
//   - LastSeq is taken first; what is submitted later is not looked at.
//   - The stream is walked next, and the bucket after it. A command leaves the
//     stream only once its record is stored, and is final or parked from then
//     on. So one that the walk no longer met has its record when the bucket is
//     scanned, and one that it met is covered by that.
//   - No command is in the stream that its queue had as acked when the audit began,
//     and so will never deliver: such a one is looked for again until it has left,
//     or is a finding. Where commands are swept out, that goes for those without an outcome.
//   - A command that was sent back has its record written before it is published.
//     One that is not in the stream is looked for again before it is a finding.
//   - A record that is replaced during the scan is met in its newer form.
//   - A replica that lags could hide something from both. Hence what looks
//     amiss is looked for again, from the start, before it is reported.
//
// # Not guaranteed
//
// An audit sees what is stored. If stream and bucket are set back together to an
// earlier state, their books may balance: [Options].Against then names what
// is gone. If only one of the two is set back, the audit finds it by itself.
//
// The counts by state are exact when nothing is written meanwhile, and near
// the truth otherwise. A command that a walk met and that is deleted by hand
// right after it is found missing by the next audit.
//
// Receipts expire. A sequence whose receipt is gone would be found missing,
// unless the books were sealed over it before ([Options].Seal): the audit then
// begins behind the sequences that an earlier one has proved. Seal the books
// at least once within the retention of receipts. What is sealed is not looked
// at again, parked commands included: one that is deleted by hand after that is
// not missed.
//
// The cause in a [Finding] is read off what is left. It is a guess where it says
// "likely", and many guesses may be wrong at once.
//
// # Shards
//
// [RunShards] proves each shard by itself and adds up: a command, its record and
// whatever accounts for its sequence lie in one shard, so nothing has to be
// compared across them. A record in a shard that its id does not belong to is a finding.
//
// # The seal
//
// A seal stops before the first sequence whose command is still in the stream or
// whose outcome is not on record. It is one write, over what was read before, so
// a crash leaves the books sealed as they were or as they were to be, and of
// several at once the furthest stands. It names the stream by the time of its
// making: one that was made anew or restored from a backup, or that ends before
// the seal, is a finding.
// A seal that does not decode, or of a newer version, is an error.
//
// # Concurrency
//
// [Run] may be called from many goroutines and processes at once.
//
// # Units and limits
//
// Memory: 4 bits for each sequence that is not sealed (500 kB per million), 5 where
// commands are swept out, and a few MB for the pages of stream, bucket and list. Lists in a report
// end after [ListLimit] entries; their counts do not.
//
// Time: an audit reads the whole bucket, sealed or not, and all bodies in the
// stream. See BenchmarkRun for how long that takes.
package audit
