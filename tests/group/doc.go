// Package group holds no code, only tests: what becomes of writes that share
// atomic batches (Settings.Commit) when servers are killed under them.
package group
