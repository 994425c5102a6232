package plural_test

import (
	"testing"

	"github.com/tallyman-go/tallyman/internal/plural"
)

func TestCount(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n    int
		noun string
		want string
	}{
		{0, "command", "0 commands"},
		{1, "command", "1 command"},
		{2, "command", "2 commands"},
		{1, "entry", "1 entry"},
		{2, "entry", "2 entries"},
		{2, "day", "2 days"},
		{3, "process", "3 processes"},
	} {
		if got := plural.Count(c.n, c.noun); got != c.want {
			t.Errorf("%d and %q: got %q, want %q", c.n, c.noun, got, c.want)
		}
	}
}
