package dedupe

import "github.com/tallyman-go/tallyman/command"

// Shard returns on which of n shards, counted from 0, the command with this
// token and its record lie: FNV-1a of 32 bits over the token's bytes, modulo n. It is what
// the server's own mapping function partition(n, ...) computes. It can never
// change, since records would no longer be found. N below 2 gives 0.
func Shard(t command.Token, n int) int {
	if n < 2 {
		return 0
	}
	h := uint32(2166136261)
	for i := range len(t) {
		h = (h ^ uint32(t[i])) * 16777619
	}
	return int(h % uint32(n))
}
