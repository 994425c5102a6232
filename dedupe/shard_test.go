package dedupe_test

import (
	"fmt"
	"hash/fnv"
	"testing"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// These values are stored layout: if one differs, records of existing pools
// are not found any more.
func TestShard_IsStable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		token   command.Token
		n, want int
	}{
		{"img-7", 1, 0},
		{"img-7", 0, 0},
		{"", 7, 2},
		{"img-7", 3, 0},
		{"img-7", 16, 4},
		{"img-7", 256, 244},
		{"order/1", 3, 0},
		{"order/1", 4, 3},
		{"=5Fx=20y", 16, 13},
		{"a", 256, 44},
	} {
		if got := dedupe.Shard(c.token, c.n); got != c.want {
			t.Errorf("shard of %q among %d: got %d, want %d", c.token, c.n, got, c.want)
		}
	}
}

func TestShard_IsFNV1a(t *testing.T) {
	t.Parallel()
	const n = 16
	var counts [n]int
	for i := range 16000 {
		token := command.Token(fmt.Sprintf("order-%d/x", i))
		h := fnv.New32a()
		_, _ = h.Write([]byte(token)) // never fails
		got, want := dedupe.Shard(token, n), int(h.Sum32()%n)
		if got != want {
			t.Fatalf("shard of %q: got %d, want %d", token, got, want)
		}
		counts[got]++
	}
	for shard, c := range counts {
		if c < 500 || c > 2000 {
			t.Errorf("shard %d got %d of 16,000 commands, want about 1,000", shard, c)
		}
	}
}
