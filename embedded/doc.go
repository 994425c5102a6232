// Package embedded runs a nats-server with JetStream inside this process, as
// one node or as a cluster on the loopback interface. It is meant for
// development, the demo and tests.
//
// # Guarantees
//
// Start returns when clients can connect and JetStream answers, or with an
// error that says what stood in the way. The server listens on TCP, so other
// processes can connect too. It installs no signal handlers and never exits the
// process. A store is used by one embedded server at a time: a second one gets
// ErrDirInUse. Restart comes back on the same port with the same store. Close
// returns after the server has ended and its files are closed.
//
// # Not guaranteed
//
// The guard on the store is seen by embedded servers only: a nats-server of its
// own that is pointed at the same directory is not noticed. Kill ends the server
// without a word to its clients, yet its files are closed in order: only killing
// a real process shows what is lost with it. Without SyncAlways an acknowledged
// write survives the end of the process, not a power cut: the server flushes to
// disk every two minutes. A cluster on one machine has the faults of one machine.
//
// # Concurrency
//
// All methods are safe for concurrent use. URL and Dir do not change after
// Start, and stay valid when the server is down.
//
// # Errors
//
// ErrDirInUse, and errors of the operating system wrapped so that errors.Is
// finds them (syscall.EADDRINUSE, fs.ErrPermission and so on).
//
// # Units and defaults
//
// Sizes are bytes. The zero Config gives a silent server on a free port of
// 127.0.0.1 with a temporary store. Start waits for at most 30 s, StartCluster
// for at most 60 s.
package embedded
