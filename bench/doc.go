// Command bench compares, in one interleaved run, what JetStream itself can
// carry with what Tallyman carries.
//
// Guarantees: every contestant meets the same harness. Server, producer and
// worker are processes of their own (the program executes itself), joined by
// TCP over loopback; every scenario begins with a fresh server on an empty
// directory; contestants take turns within each round, and the order rotates
// from round to round. All counts and latencies are read from JetStream, not
// reported by the contestant: a scenario ends when the command stream has
// taken N commands and is empty again, and it fails unless the bucket then
// holds exactly N receipts more than before.
//
// Not guaranteed: absolute figures. They belong to one machine and one moment;
// compare the ratios, which are medians of the ratios within each round.
//
// Errors: the first failure ends the run with exit code 1; wrong usage is 2.
// Children end when their standard input closes, so none outlives the run.
//
// Units: rates in commands per second, latencies in milliseconds, CPU in
// milliseconds per 10,000 commands, memory in MiB.
//
// It runs on Linux, where /proc tells each process's own peak memory.
package main
