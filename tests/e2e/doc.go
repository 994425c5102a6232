// Package e2e puts real worker processes and a real server process through
// real faults, and checks the invariants after each.
//
// # Guarantees
//
// Workers are programs of their own, built with the failpoints tag, killed and
// frozen by signals from outside or by themselves at a named point. Servers
// are processes too. What handlers did is read from a file that they append
// to, not from what the pool says of them. Every test ends with the books:
// each sequence of the command stream is in the stream or accounted for, by
// one id; each command has at most one receipt in the whole history of the
// bucket; the file bears out what the receipts claim.
//
// # Not guaranteed
//
// A server that is killed loses nothing that the kernel had: power cuts are
// not tried here.
//
// # Settings
//
// TALLYMAN_SEED repeats a run of TestChaos, TALLYMAN_CHAOS sets how long it
// goes on (default 12 s).
package e2e
