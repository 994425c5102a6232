// Package probes answers /healthz, /readyz and /metrics for commands that run
// until they are stopped.
//
// /healthz says that the process lives. /readyz asks whoever it was given, for
// at most 3 s, and keeps the answer for 1 s, so that many who ask cost little.
// The address is served until the command is over, so that one that drains can
// still be asked how it fares. All functions are safe for concurrent use.
package probes
