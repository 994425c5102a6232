// Package demo shows the promise of a pool on real files, with real faults: it
// packs a directory with workers that are killed and frozen in the middle of
// their work, and then proves from what is stored that the books balance.
//
// # Guarantees
//
// Every regular file of the directory is submitted once and some of them
// again. A kill (SIGKILL) and a freeze (SIGSTOP for longer than the lease) hit
// a worker process that holds a command at that moment: the handler of the
// chosen file pauses until the fault has come. Nothing in the directory is
// written. The server, its store and all worker processes are gone when
// Command.Run returns, also after an interrupt.
//
// # Not guaranteed
//
// The directory should be quiet. A file that changes between its submission
// and its packing is parked and named; that is no loss, yet no proof either.
// Outside Linux a worker that is frozen while this process is killed stays
// frozen. Where the system knows no SIGSTOP nothing is frozen.
//
// The demo brings its own server: the flags that name one, or a pool, are not
// looked at.
//
// # The books
//
// Submitted counts every submission, the repeated ones included; absorbed
// those of them that changed nothing. Executions counts how often a handler
// began, which is more often than there are files as soon as a worker died.
// Receipts counts the receipts that the bucket took in during the whole run.
// Takeovers are attempts that went on where another ended. Refused are late
// results of workers that had lost their lease. Lost are submitted commands
// without a receipt that are not parked either. Doubled are commands of which
// more than one receipt was ever stored or reported. Verified are files whose
// packed object was read back, unpacked, and has the SHA-256 of the file.
//
// # Errors
//
// cli.ErrUsage if there is nothing to pack, cli.ErrUnbalanced if the proof
// fails, tallyman.ErrParked if it holds but for files that changed.
//
// # Units and defaults
//
// 3 workers of 4 handlers each, 2 kills, 1 freeze, a lease of 2 s. Files above
// 64 MiB are left out, and so is what goes beyond 20,000 files or 2 GiB. The
// work is slowed down to about 5 s.
package demo
