// Package runner lets any language handle commands: as a program that is
// started for each attempt ([Exec]), or as an HTTP endpoint ([HTTP]). Both are
// tallyman.Handlers; [Load] reads a list of them from a YAML file, which
// docs/handlers.md describes in full.
//
// # Guarantees
//
//   - One call of Handle is one start of the program, or one POST. Nothing is
//     retried in here; the pool alone decides about another attempt.
//   - A result is stored whole or not at all. More than MaxResult bytes park
//     the command; nothing is cut.
//   - Progress lines are saved in the order in which they were written, and all
//     of them before Handle returns, including the last ones before the exit.
//   - When Handle returns, every process of the group is dead or has been sent
//     SIGKILL, and no goroutine or descriptor of the attempt is left.
//   - Exit status 0 completes a command only if the program ended by itself. A
//     program that was told to stop has not finished, whatever it exits with.
//
// # Not guaranteed
//
//   - A process that leaves its group (setsid, a daemon) is not killed. It does
//     not hold up Handle, even if it keeps the pipes open.
//   - If the worker itself is killed, the kernel kills the program on Linux, but
//     not the program's own children, and on macOS nothing. What they do from
//     then on is fenced off only by the token, if the outside system checks it.
//   - A request whose answer is lost may have had its effect. Its next attempt
//     carries the same Idempotency-Key.
//
// # Concurrency
//
// Handlers may be called from many goroutines at once; do not change their
// fields after the first call. Each running program costs one OS thread, a few
// goroutines and five pipes.
//
// # Errors
//
// Configuration errors are [ConfigError]s with file and line; several are
// joined. Handle's errors carry the verdict (tallyman.Reject,
// tallyman.RetryAfter), or are plain errors, which are failed attempts. An
// attempt that ended with its context wraps context.Cause(ctx).
//
// # Units and defaults
//
// Sizes are bytes. MaxResult 512 KiB ([DefaultMaxResult]), KillAfter 2 s
// ([DefaultKillAfter]), stderr and error bodies are kept to their last 2 KiB, a
// progress line is at most 2 MiB long, an HTTP Retry-After counts up to 1 h.
package runner
